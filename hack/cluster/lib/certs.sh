# shellcheck shell=bash
# Certificates and kubeconfigs, created at each `up`.

# certificate NAME COMMON-NAME ORGANIZATION [SUBJECT-ALT-NAMES]
certificate() {
	local name=$1 subject="/CN=$2" names=${4:-}
	if [[ -n $3 ]]; then subject="/O=$3/CN=$2"; fi
	openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/$name.key"
	openssl req -new -key "$PKI/$name.key" -subj "$subject" -out "$PKI/$name.csr"
	{
		printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=clientAuth,serverAuth\n'
		if [[ -n $names ]]; then printf 'subjectAltName=%s\n' "$names"; fi
	} >"$PKI/$name.ext"
	openssl x509 -req -in "$PKI/$name.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -set_serial "0x$(openssl rand -hex 8)" \
		-days 3650 -extfile "$PKI/$name.ext" -out "$PKI/$name.crt"
	rm "$PKI/$name.csr" "$PKI/$name.ext"
}

# kubeconfig FILE CERTIFICATE-NAME
kubeconfig() {
	(
		umask 077
		cat >"$1" <<-END
			apiVersion: v1
			kind: Config
			current-context: throwaway
			contexts:
			- name: throwaway
			  context: {cluster: throwaway, user: $2}
			clusters:
			- name: throwaway
			  cluster:
			    server: https://$API_ADDRESS:6443
			    certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")
			users:
			- name: $2
			  user:
			    client-certificate-data: $(base64 -w0 "$PKI/$2.crt")
			    client-key-data: $(base64 -w0 "$PKI/$2.key")
		END
	)
}

make_certificates() {
	umask 077
	mkdir -p "$PKI"
	openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/ca.key"
	openssl req -x509 -new -key "$PKI/ca.key" -subj /CN=throwaway-ca -days 3650 -out "$PKI/ca.crt" \
		-addext keyUsage=critical,keyCertSign,digitalSignature
	openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/service-account.key"
	certificate kube-apiserver kube-apiserver "" \
		"IP:$API_ADDRESS,IP:$API_SERVICE_ADDRESS,IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.$DOMAIN"
	certificate kube-apiserver-kubelet-client kube-apiserver-kubelet-client system:masters
	certificate admin admin system:masters
	certificate kube-controller-manager system:kube-controller-manager ""
	certificate kube-scheduler system:kube-scheduler ""
	certificate kube-proxy system:kube-proxy ""
	kubeconfig "$CLUSTER_DIR/kube-controller-manager.kubeconfig" kube-controller-manager
	kubeconfig "$CLUSTER_DIR/kube-scheduler.kubeconfig" kube-scheduler
	kubeconfig "$CLUSTER_DIR/kube-proxy.kubeconfig" kube-proxy
	kubeconfig "$CLUSTER_DIR/admin.kubeconfig" admin
}

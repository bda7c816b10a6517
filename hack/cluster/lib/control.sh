# shellcheck shell=bash
# The control plane, in the sandbox "control".

CONTROL_COMPONENTS="etcd kube-apiserver kube-controller-manager kube-scheduler"

start_etcd() {
	# Without fsync: the data is temporary, and a slow disk must not slow down the tests.
	spawn control etcd "$BIN/etcd" --name throwaway --data-dir "$CLUSTER_DIR/etcd" --unsafe-no-fsync \
		--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
		--listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
		--initial-cluster throwaway=http://127.0.0.1:2380 --log-level warn
}

start_kube_apiserver() {
	spawn control kube-apiserver "$KUBERNETES_BIN/kube-apiserver" --v=2 \
		--advertise-address="$API_ADDRESS" --bind-address=0.0.0.0 --secure-port=6443 \
		--etcd-servers=http://127.0.0.1:2379 \
		--client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/kube-apiserver.crt" --tls-private-key-file="$PKI/kube-apiserver.key" \
		--kubelet-client-certificate="$PKI/kube-apiserver-kubelet-client.crt" --kubelet-client-key="$PKI/kube-apiserver-kubelet-client.key" \
		--kubelet-certificate-authority="$PKI/ca.crt" --kubelet-preferred-address-types=InternalIP \
		--service-account-issuer="https://kubernetes.default.svc.$DOMAIN" \
		--service-account-key-file="$PKI/service-account.key" --service-account-signing-key-file="$PKI/service-account.key" \
		--service-cluster-ip-range="$SERVICE_NETWORK" \
		--authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --anonymous-auth=false \
		--allow-privileged=true --enable-aggregator-routing=true --profiling=false \
		--audit-policy-file="$HERE/config/audit-policy.yaml" --audit-log-path="$LOG_DIR/audit.log" --audit-log-maxsize=200
}

start_kube_controller_manager() {
	spawn control kube-controller-manager "$KUBERNETES_BIN/kube-controller-manager" --v=2 \
		--kubeconfig="$CLUSTER_DIR/kube-controller-manager.kubeconfig" \
		--authentication-kubeconfig="$CLUSTER_DIR/kube-controller-manager.kubeconfig" \
		--authorization-kubeconfig="$CLUSTER_DIR/kube-controller-manager.kubeconfig" \
		--leader-elect=false --use-service-account-credentials=true --profiling=false \
		--root-ca-file="$PKI/ca.crt" --service-account-private-key-file="$PKI/service-account.key" \
		--service-cluster-ip-range="$SERVICE_NETWORK" --cluster-cidr="$POD_NETWORK" \
		--flex-volume-plugin-dir="$CLUSTER_DIR/run"
}

start_kube_scheduler() {
	spawn control kube-scheduler "$KUBERNETES_BIN/kube-scheduler" --v=2 \
		--kubeconfig="$CLUSTER_DIR/kube-scheduler.kubeconfig" \
		--authentication-kubeconfig="$CLUSTER_DIR/kube-scheduler.kubeconfig" \
		--authorization-kubeconfig="$CLUSTER_DIR/kube-scheduler.kubeconfig" \
		--leader-elect=false --profiling=false
}

kubectl() { "${CLEAN[@]}" "KUBECONFIG=$CLUSTER_DIR/admin.kubeconfig" "HOME=$CLUSTER_DIR/run" "$KUBERNETES_BIN/kubectl" "$@"; }

api_ready() { [[ $(kubectl get --raw /readyz --request-timeout=2s 2>&1) == ok ]]; }

start_control_plane() {
	note "(etcd and API server)"
	start_control
	network_control
	start_etcd
	start_kube_apiserver
	wait_for 60 "the API server" api_ready
	note "(controller manager and scheduler)"
	start_kube_controller_manager
	start_kube_scheduler
}

apply_coredns() {
	sed -e "s/@REPLICAS@/$COREDNS_REPLICAS/" -e "s/@DNS_ADDRESS@/$DNS_ADDRESS/" -e "s/@DOMAIN@/$DOMAIN/" "$HERE/config/coredns.yaml" |
		kubectl apply -f -
}

wait_coredns() {
	if ((COREDNS_REPLICAS == 0)); then return; fi
	kubectl -n kube-system rollout status deployment/coredns --timeout=120s
}

package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Token gets a token of a service account, as kubelet does for a pod: it is bound to pod, unless that is nil, and good for an hour.
func (c *Cluster) Token(ctx context.Context, namespace, account string, pod *corev1.Pod) (string, error) {
	hour := int64(3600)
	request := authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	answer, err := c.Kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}

// WriteKubeconfig writes what a client reaches an API server with into dir, and returns the kubeconfig's path. It names the files
// ca.crt and token beside it: a token that is rotated there is used.
func WriteKubeconfig(dir, server string, ca []byte, token string) (string, error) {
	path := func(name string) string { return filepath.Join(dir, name) }
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: agent
contexts: [{name: agent, context: {cluster: cluster, user: agent}}]
clusters: [{name: cluster, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: agent, user: {tokenFile: %q}}]
`, server, path("ca.crt"), path("token"))
	for name, text := range map[string]string{"kubeconfig": config, "ca.crt": string(ca), "token": token} {
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	return path("kubeconfig"), nil
}

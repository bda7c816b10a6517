package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// launched is what became of one agent of the fleet.
type launched struct {
	Node     string
	Err      string   // why it did not verify its node
	Troubles []string // what it logged as a warning or an error
}

const fleetAtOnce = 32

// fleet runs the agent for n pods of the DaemonSet, each with that pod's own bound token: what
// kubelet does for a node that is real. It stands in the pod network, where the agents' checks work.
// An agent ends with its verdict (--once) instead of holding until it is deleted: thousands that
// hold would need the memory of thousands of nodes.
func fleet(ctx context.Context, cluster *harness.Cluster, n int) error {
	ca, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pods := make(chan *corev1.Pod, n)
	if err := running(ctx, cluster, func(pod *corev1.Pod) { pods <- pod }); err != nil {
		return err
	}
	results := make(chan launched)
	for range fleetAtOnce {
		go func() {
			for pod := range pods {
				results <- launch(ctx, cluster, pod, ca)
			}
		}()
	}
	for range n {
		if err := say(<-results); err != nil {
			return err
		}
	}
	return nil
}

// running hands over each of the DaemonSet's pods once, as soon as it runs on one of our nodes.
func running(ctx context.Context, cluster *harness.Cluster, found func(*corev1.Pod)) error {
	factory := informers.NewSharedInformerFactoryWithOptions(cluster.Kube, 0, informers.WithNamespace(harness.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "app.kubernetes.io/name=" + harness.Name }))
	seen := map[string]bool{} // the handler is called by one goroutine
	see := func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok || pod.Status.Phase != corev1.PodRunning || !strings.HasPrefix(pod.Spec.NodeName, "bench-") || seen[string(pod.UID)] {
			return
		}
		seen[string(pod.UID)] = true
		found(pod)
	}
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, now any) { see(now) }}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("the pods cannot be watched")
	}
	return nil
}

func launch(ctx context.Context, cluster *harness.Cluster, pod *corev1.Pod, ca []byte) launched {
	done := launched{Node: pod.Spec.NodeName}
	token, err := cluster.Kube.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
			Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}}}, metav1.CreateOptions{})
	if err != nil {
		done.Err = err.Error()
		return done
	}
	kubeconfig := filepath.Join(os.TempDir(), pod.Spec.NodeName)
	if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://%s:%s", "certificate-authority-data": %q}}],
		"users": [{"name": "u", "user": {"token": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`,
		os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"), base64.StdEncoding.EncodeToString(ca), token.Status.Token), 0o600); err != nil {
		done.Err = err.Error()
		return done
	}
	defer func() { _ = os.Remove(kubeconfig) }()

	cmd := exec.CommandContext(ctx, agent(), "--once")
	cmd.Env = append(os.Environ(), "NODE_NAME="+pod.Spec.NodeName, "KUBECONFIG="+kubeconfig, "ENABLE_METRICS=false")
	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		done.Err = err.Error()
		return done
	}
	done.Troubles = troubles(log)
	if err := cmd.Wait(); err != nil {
		done.Err = err.Error()
	}
	return done
}

// troubles picks the lines of the agent's log that tell of a fault.
func troubles(log io.Reader) (found []string) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var line struct{ Level, Msg, Error, Warning string }
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Level != "info" {
			found = append(found, strings.TrimSpace(line.Level+" "+line.Msg+" "+line.Error+" "+line.Warning))
		}
	}
	return found
}

// await waits as long as there is hope: until count is n, or has not changed for the time idle.
func await(ctx context.Context, idle time.Duration, count func() int, n int) {
	latest, since := -1, time.Now()
	for ctx.Err() == nil {
		now := count()
		if now != latest {
			latest, since = now, time.Now()
		}
		if now == n || time.Since(since) > idle {
			return
		}
		time.Sleep(20 * time.Millisecond) // finer than harness.Until: what is waited for is measured
	}
}

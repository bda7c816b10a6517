package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const parallelAgents = 32

// outcome is the result of one pod of the DaemonSet.
type outcome struct {
	Err      string   // why the agent did not verify its node
	Warnings []string // from its log
}

// fleet does for n pods of the DaemonSet what kubelet does on a real node: it gets a token bound to the pod, and starts the pod's
// program with it. It runs in the pod network, where the agent's checks work.
func fleet(ctx context.Context, cluster *harness.Cluster, n int, start startFunc) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelAgents)
	pods := make(chan *corev1.Pod, n)
	if _, err := watchPods(ctx, cluster, func(pod *corev1.Pod) { pods <- pod }); err != nil {
		return err
	}
	for range n {
		select {
		case <-ctx.Done():
		case pod := <-pods:
			group.Go(func() error {
				var o outcome
				token, err := cluster.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName, pod)
				if err == nil {
					o.Warnings, err = start(ctx, pod.Spec.NodeName, token)
				}
				if err != nil {
					o.Err = err.Error()
				}
				return printJSON(o)
			})
		}
	}
	return group.Wait()
}

// startFunc runs the program of a node's pod and returns the warnings that it logged.
type startFunc func(ctx context.Context, node, token string) (warnings []string, err error)

// startIdle stands for a program that does nothing.
func startIdle(context.Context, string, string) ([]string, error) { return nil, nil }

// startAgent runs the agent until its verdict (--once): thousands that hold would need the memory of thousands of nodes.
func startAgent(ctx context.Context, node, token string) ([]string, error) {
	ca, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server := "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	kubeconfig, err := harness.WriteKubeconfig(dir, server, ca, token)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, agentPath(), "--once")
	cmd.Env = append(os.Environ(), "NODE_NAME="+node, "KUBECONFIG="+kubeconfig, "ENABLE_METRICS=false")
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	found := warnings(log)
	return found, cmd.Wait()
}

// warnings returns the lines of the agent's log above level info.
func warnings(log io.Reader) (found []string) {
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var line struct{ Level, Msg, Error, Warning string }
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Level != "info" {
			found = append(found, strings.TrimSpace(line.Level+" "+line.Msg+" "+line.Error+" "+line.Warning))
		}
	}
	return found
}

// podsOfNodes selects the pods that verify nodes.
const podsOfNodes = "app.kubernetes.io/component in (agent, worker)"

// watchPods calls found once for each of these pods that runs on one of the benchmark's nodes. The store that it returns holds all.
func watchPods(ctx context.Context, cluster *harness.Cluster, found func(*corev1.Pod)) (cache.Store, error) {
	informer := informers.NewFilteredPodInformer(cluster.Kube, harness.Namespace, 0, nil, labelled(podsOfNodes))
	seen := map[types.UID]bool{} // used by the informer's goroutine only
	return informer.GetStore(), watch(ctx, informer, func(pod *corev1.Pod) {
		if pod.Status.Phase == corev1.PodRunning && strings.HasPrefix(pod.Spec.NodeName, nodePrefix) && !seen[pod.UID] {
			seen[pod.UID] = true
			found(pod)
		}
	})
}

// watch calls handle with each object of an informer, at first and after each change.
func watch[T any](ctx context.Context, informer cache.SharedInformer, handle func(T)) error {
	handleAny := func(object any) {
		if object, ok := object.(T); ok {
			handle(object)
		}
	}
	events := cache.ResourceEventHandlerFuncs{AddFunc: handleAny, UpdateFunc: func(_, now any) { handleAny(now) }}
	if _, err := informer.AddEventHandler(events); err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("the watch does not start")
	}
	return nil
}

func labelled(selector string) func(*metav1.ListOptions) {
	return func(o *metav1.ListOptions) { o.LabelSelector = selector }
}

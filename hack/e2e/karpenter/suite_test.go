// Package karpenter runs the agent on the nodes of the real Karpenter: its controller with its kwok provider makes the nodes, kwok
// plays their kubelet, and the agent's binary is run for the pod that the DaemonSet controller makes for each of them, with that
// pod's bound token and in a real pod's network. `make e2e-karpenter` runs it, `make e2e` a shorter version.
package karpenter

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	realNode = "node1" // of the throwaway cluster; lends the agents its pods' network
	pool     = "graviton-spot"
)

var (
	nodes      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodeClaims = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
	// programs are Karpenter and kwok.
	programs *running
)

// long tells whether this is `make e2e-karpenter` and not a part of `make test`.
func long() bool { return os.Getenv("KARPENTER") == "long" }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cluster, err := harness.Open()
	if err == nil {
		err = installCRDs(ctx, cluster)
	}
	if err == nil {
		programs, err = startPrograms(ctx, cluster)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1 // not skipped: who runs these tests wants to know
	}
	defer programs.stop()
	return m.Run()
}

// suite is one test's hold on the cluster.
type suite struct {
	*testing.T
	*harness.Cluster
	ctx     context.Context
	require *require.Assertions
	dynamic *dynamic.DynamicClient
	seen    *timeline
	kubelet *kubelet
}

// start deploys the agent with values, and runs it wherever its DaemonSet has a pod on a node of Karpenter's.
func start(t *testing.T, values ...string) *suite {
	t.Helper()
	cluster, err := harness.Open()
	require.NoError(t, err)
	// Long enough on a noisy machine; nothing waits as long as that when all is well.
	limit := 5 * time.Minute
	if long() {
		limit = 15 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	config, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig())
	require.NoError(t, err)
	config.QPS, config.Burst = 200, 400
	s := &suite{T: t, Cluster: cluster, ctx: ctx, require: require.New(t), dynamic: dynamic.NewForConfigOrDie(config)}
	s.require.NoError(s.Undeploy(ctx))
	s.require.NoError(s.Reset(ctx, realNode))
	s.require.NoError(s.noNodes(ctx)) // of a run that was killed
	s.cleanup(func(ctx context.Context) error { return s.noNodes(ctx) })
	s.cleanup(func(ctx context.Context) error { return s.Undeploy(ctx) })
	s.seen = watch(ctx, t, s.dynamic)
	s.kubelet = newKubelet(s)
	// Every agent is a process in the same pod's network, so there is no port for each.
	s.require.NoError(s.Deploy(ctx, append([]string{"config.enableMetrics=false"}, values...)...))
	return s
}

// cleanup undoes something even when the test's own time is over.
func (s *suite) cleanup(undo func(ctx context.Context) error) {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()
		require.NoError(s.T, undo(ctx))
	})
}

// noNodes takes away every node of Karpenter's, and waits until it is gone.
func (s *suite) noNodes(ctx context.Context) error {
	for _, args := range []string{"delete deployments,nodepools,nodeclaims --all --wait=false", "wait --for=delete nodeclaims --all --timeout=3m"} {
		if _, err := s.Kubectl(ctx, "", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return nil
}

// apply creates objects and deletes them at the end of the test.
func (s *suite) apply(manifests string) {
	s.Helper()
	remove, err := s.Apply(s.ctx, manifests)
	s.require.NoError(err)
	s.cleanup(remove)
}

// example reads a file of hack/examples.
func (s *suite) example(path ...string) string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{s.Root, "hack", "examples"}, path...)...))
	s.require.NoError(err)
	return string(text)
}

// nodePools applies the NodePools of the example, with kwok's node class in place of EC2's, and with further replacements.
func (s *suite) nodePools(delay string, replacements ...string) {
	s.Helper()
	replacements = append(replacements, "karpenter.k8s.aws/instance-family", "karpenter.kwok.sh/instance-family",
		"group: karpenter.k8s.aws", "group: karpenter.kwok.sh", "kind: EC2NodeClass", "kind: KWOKNodeClass")
	if !long() {
		replacements = append(replacements, "consolidateAfter: 1m", "consolidateAfter: 5s")
	}
	s.apply(fmt.Sprintf("apiVersion: karpenter.kwok.sh/v1alpha1\nkind: KWOKNodeClass\nmetadata: {name: default}\nspec: {nodeRegistrationDelay: %s}\n---\n", delay) +
		strings.NewReplacer(replacements...).Replace(s.example("karpenter", "nodepools.yaml")))
}

// workload is a deployment of pods that each want an arm64 node of Karpenter's to themselves.
func (s *suite) workload(name string, replicas int) {
	s.Helper()
	s.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: default}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 0
      nodeSelector: {kubernetes.io/arch: arm64}
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: %[1]s}}}
      containers:
      - {name: app, image: "localhost/workload:1", resources: {requests: {cpu: 500m, memory: 256Mi}}}
`, name, replicas))
}

func (s *suite) scale(name string, replicas int) {
	s.Helper()
	_, err := s.Kubectl(s.ctx, "", "scale", "deployment", name, fmt.Sprintf("--replicas=%d", replicas))
	s.require.NoError(err)
}

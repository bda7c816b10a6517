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

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	realNode = harness.RealNode // lends the agents its pods' network
	pool     = "graviton-spot"
)

var (
	nodes      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodeClaims = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
	// programs are Karpenter and kwok.
	programs running
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, prepare)) }

func prepare(ctx context.Context, cluster *harness.Cluster) (stop func(context.Context) error, err error) {
	if err := installCRDs(ctx, cluster); err != nil {
		return nil, err
	}
	programs, err = startPrograms(ctx, cluster)
	return func(context.Context) error {
		programs.stop()
		return nil
	}, err
}

// suite is one test's access to the cluster.
type suite struct {
	*harness.Suite
	dynamic *dynamic.DynamicClient
	seen    *timeline
	kubelet *kubelet
}

// start deploys the agent with values, and runs it wherever its DaemonSet has a pod on a node of Karpenter's.
func start(t *testing.T, values ...string) *suite {
	t.Helper()
	s := &suite{Suite: harness.Start(t)}
	config, err := clientcmd.BuildConfigFromFlags("", s.Cluster.Kubeconfig())
	s.NoError(err)
	config.QPS, config.Burst = 200, 400
	s.dynamic = dynamic.NewForConfigOrDie(config)
	s.NoError(s.Cluster.Undeploy(s.Ctx))
	s.NoError(s.Cluster.Reset(s.Ctx, realNode))
	s.NoError(s.noNodes(s.Ctx)) // of a run that was killed
	s.Undo(s.noNodes)
	s.Undo(func(ctx context.Context) error { return s.Cluster.Undeploy(ctx) })
	s.seen = watch(s.Ctx, t, s.dynamic)
	s.kubelet = newKubelet(s)
	// Every agent is a process in the same pod's network, so there is no port for each.
	s.Deploy(append([]string{"config.enableMetrics=false"}, values...)...)
	return s
}

// noNodes takes away every node of Karpenter's, and waits until it is gone.
func (s *suite) noNodes(ctx context.Context) error {
	for _, args := range []string{"delete deployments,nodepools,nodeclaims --all --wait=false", "wait --for=delete nodeclaims --all " + harness.Wait} {
		if _, err := s.Cluster.Kubectl(ctx, "", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return nil
}

// example reads a file of hack/examples.
func (s *suite) example(path ...string) string {
	s.T.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{s.Cluster.Root, "hack", "examples"}, path...)...))
	s.NoError(err)
	return string(text)
}

// nodePools applies the NodePools of the example, with kwok's node class in place of EC2's, limits high enough for 100 nodes, and with
// further replacements, which come first.
func (s *suite) nodePools(delay string, replacements ...string) {
	s.T.Helper()
	replacements = append(replacements, "karpenter.k8s.aws/instance-family", "karpenter.kwok.sh/instance-family",
		"group: karpenter.k8s.aws", "group: karpenter.kwok.sh", "kind: EC2NodeClass", "kind: KWOKNodeClass", "cpu: 64", "cpu: 1000")
	if !harness.Long() {
		replacements = append(replacements, "consolidateAfter: 1m", "consolidateAfter: 5s")
	}
	s.Apply(fmt.Sprintf("apiVersion: karpenter.kwok.sh/v1alpha1\nkind: KWOKNodeClass\nmetadata: {name: default}\nspec: {nodeRegistrationDelay: %s}\n---\n", delay) +
		strings.NewReplacer(replacements...).Replace(s.example("karpenter", "nodepools.yaml")))
}

// workload is a deployment of pods that each want an arm64 node of Karpenter's to themselves.
func (s *suite) workload(name string, replicas int) {
	s.T.Helper()
	s.workloadOn("kubernetes.io/arch: arm64", name, replicas)
}

// workloadOn is the same with another selector.
func (s *suite) workloadOn(selector, name string, replicas int) {
	s.T.Helper()
	s.Apply(fmt.Sprintf(`
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
      nodeSelector: {%[3]s}
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: %[1]s}}}
      containers:
      - {name: app, image: "localhost/workload:1", resources: {requests: {cpu: 500m, memory: 256Mi}}}
`, name, replicas, selector))
}

func (s *suite) scale(name string, replicas int) {
	s.T.Helper()
	s.Kubectl("", "scale", "deployment", name, fmt.Sprintf("--replicas=%d", replicas))
}

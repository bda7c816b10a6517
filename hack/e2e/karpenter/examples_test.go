package karpenter

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Every values file of hack/examples renders with the chart, for this Kubernetes, and is taken by the API server. hack/exampletest has
// what needs no cluster: each folder has a values file.
func TestPresets(t *testing.T) {
	s := start(t)
	presets, err := filepath.Glob(s.Cluster.Root + "/hack/examples/*/values*.yaml")
	s.NoError(err)
	s.NotEmpty(presets)
	for _, namespace := range []string{"openshift-dns", "calico-system", "gpu-operator"} { // where the agents may list something
		s.Apply("{apiVersion: v1, kind: Namespace, metadata: {name: " + namespace + "}}")
	}
	for _, preset := range presets {
		name := filepath.Base(filepath.Dir(preset))
		t.Run(name+"/"+filepath.Base(preset), func(t *testing.T) {
			s := s.Part(t)
			rendered, err := s.Cluster.Template(s.Ctx, "", harness.Release{Name: "preset", Namespace: harness.Namespace}, "--no-hooks", "--values", preset,
				"--set", "image.repository="+harness.Image+",image.tag=none")
			s.NoError(err)
			s.Contains(rendered, "kind: DaemonSet")
			s.Undo(func(ctx context.Context) error {
				_, err := s.Cluster.Kubectl(ctx, rendered, "delete", "--ignore-not-found", "-f", "-")
				return err
			})
			out := s.Kubectl(rendered, "apply", "-f", "-")
			for kind, count := range map[string]int{"daemonset.apps/": 1, "configmap/": 1, "validatingadmissionpolicy.": 2, "clusterrole.": 1} {
				s.Equal(count, strings.Count(out, kind), "%s", out)
			}
		})
	}
}

// The objects of the examples, with the CRDs of the projects' own modules.
func TestExamples(t *testing.T) {
	s := start(t)
	s.Apply(s.example("karpenter", "ec2nodeclass.yaml"))
	s.Apply(s.example("karpenter", "nodepools.yaml"))
	s.Apply(s.example("eks-auto-mode", "nodepool.yaml"))
	pools := s.Kubectl("", "get", "nodepools", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.weight} {.spec.limits.cpu} {.spec.template.spec.startupTaints[*].key} {.spec.template.spec.taints} {.spec.template.spec.nodeClassRef.kind}{"\n"}{end}`)
	// Low limits: Karpenter adds another node for each that fails, and the failed one stays.
	s.Equal("gated   node-ready/unverified  NodeClass\ngraviton-spot 10 64 node-ready/unverified  EC2NodeClass\nx86-spot 5 64 node-ready/unverified  EC2NodeClass\n", pools)

	// The schema is at work: what it would refuse is refused.
	for _, c := range []struct{ file, valid, invalid, field string }{
		{"ec2nodeclass.yaml", "httpTokens: required", "httpTokens: maybe", "httpTokens"},
		{"nodepools.yaml", "weight: 10", "weight: 101", "weight"},
	} {
		_, err := s.Cluster.Kubectl(s.Ctx, strings.Replace(s.example("karpenter", c.file), c.valid, c.invalid, 1), "apply", "--dry-run=server", "-f", "-")
		s.ErrorContains(err, c.field)
	}

	// CoreDNS takes the patch of the example, as kubectl would send it.
	patch := filepath.Join(t.TempDir(), "patch.yaml")
	s.NoError(os.WriteFile(patch, []byte(s.example("karpenter", "coredns-affinity.yaml")), 0o600))
	s.Kubectl("", "-n", "kube-system", "patch", "deployment", "coredns", "--dry-run=server", "--patch-file", patch)
}

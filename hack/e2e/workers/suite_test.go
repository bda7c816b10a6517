// Package workers tests controller mode: the chart with both images, on nodes with a real kubelet, and fleets whose kubelet kwok
// plays. `make e2e` runs it, and `make faults` with more nodes.
package workers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// values deploy a controller whose workers fail within seconds. An attempt has the chart's own time limit: one that no test breaks
// must pass.
var values = append(harness.ControllerValues(), "deploymentMode=controller", "config.initialTimeout=3s", "config.maxRetries=0")

// nodes have a real kubelet, and faults.
var nodes = []string{"node2", "node3", "node4"}

func TestMain(m *testing.M) { os.Exit(harness.Main(m, prepare)) }

// prepare deploys the controller for all tests, and adds the nodes, which it verifies.
func prepare(ctx context.Context, cluster *harness.Cluster) (cleanUp func(context.Context) error, err error) {
	remove, err := cluster.DeployController(ctx, nodes, values)
	if err != nil {
		return nil, err
	}
	if harness.Core() { // without fleets
		return remove, nil
	}
	stages, err := filepath.Abs("testdata/stages.yaml")
	if err != nil {
		return nil, err
	}
	kwok, err := cluster.StartKwok(ctx, stages)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		kwok.Stop()
		return remove(ctx)
	}, nil
}

// suite is one test's access to the cluster.
type suite struct {
	*harness.Suite
	row *harness.Row // of a fault
}

func start(t *testing.T) *suite {
	t.Helper()
	return &suite{Suite: harness.Start(t)}
}

// begin starts the test of a fault that has one row of the table.
func begin(t *testing.T, fault, outcome string) *suite {
	t.Helper()
	s := start(t)
	s.row = harness.BeginRow(t, fault, outcome)
	return s
}

// worker returns the worker whose verdict has released a node.
func worker(node *corev1.Node) (uid types.UID) {
	var annotation struct{ Worker types.UID }
	_ = json.Unmarshal([]byte(node.Annotations[harness.Annotation]), &annotation) // none: no worker
	return annotation.Worker
}

// awaitVerified waits until a node is verified, and asserts which worker has released it: the last of so many.
func (s *suite) awaitVerified(node string, workers *recorder, count int) (last *seen) {
	s.T.Helper()
	last = s.awaitRelease(node, workers)
	s.Equal(count, len(workers.of(node)), "workers of %s", node) // Len would print them
	return last
}

// awaitRelease waits until a node is verified, and asserts that its last worker has released it.
func (s *suite) awaitRelease(node string, workers *recorder) (last *seen) {
	s.T.Helper()
	now, _ := s.AwaitVerified(node)
	all := workers.of(node)
	s.NotEmpty(all)
	last = all[len(all)-1]
	s.Equal(last.UID, worker(now), "released by another worker")
	return last
}

// addForeign adds what others have on a node until the test ends, and returns all that must be there in the end.
func (s *suite) addForeign(node string) (wanted map[string]string) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "taint", "node", node, "foreign/taint-")
		if err != nil {
			return err
		}
		return s.Cluster.Patch(ctx, node, `{"metadata":{"labels":{"foreign/label":null},"annotations":{"foreign/annotation":null}}}`)
	})
	s.Kubectl("", "taint", "node", node, "--overwrite", "foreign/taint=kept:NoSchedule")
	s.Patch(node, `{"metadata":{"labels":{"foreign/label":"kept"},"annotations":{"foreign/annotation":"kept"}}}`)
	return harness.Foreign(s.Node(node))
}

// drop adds nftables rules for a node's pods until repair is called, at the latest when the test ends.
func (s *suite) drop(node string, rules ...string) (repair func()) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error { return s.Cluster.Repair(ctx, node) })
	s.NoError(s.Cluster.Break(s.Ctx, node, rules...))
	return func() { s.NoError(s.Cluster.Repair(s.Ctx, node)) }
}

// dropDNS is the rule that drops what pods ask name servers.
const dropDNS = "meta l4proto { tcp, udp } th dport 53 drop"

// held is the policy of hold.
const held = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: e2e-hold}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [%[1]s], operations: [%[2]s]}
      - {apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}
  matchConditions:
    - name: controller
      expression: request.name == 'e2e-hold' || (request.resource.resource == '%[1]s' && request.userInfo.username == '%[3]s')
  validations: [{expression: "false", message: held by a test}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: e2e-hold}
spec: {policyName: e2e-hold, validationActions: [Deny]}
`

// hold lets the API server refuse an operation of the controller until release is called, at the latest when the test ends.
func (s *suite) hold(resource, operation string) (release func()) {
	s.T.Helper()
	manifests := fmt.Sprintf(held, resource, operation, harness.ControllerUser)
	s.Apply(manifests)
	s.Until(func() (bool, error) { // the API server reads its policies a moment later
		_, err := s.Cluster.Kubectl(s.Ctx, "", "create", "configmap", "-n", "default", "e2e-hold", "--dry-run=server")
		return err != nil, nil
	}, "the policy is not in force")
	return func() { s.Kubectl(manifests, "delete", "--ignore-not-found", "-f", "-") }
}

// awaitRefused waits until the API server has refused a request of the controller about a node, or about a worker.
func (s *suite) awaitRefused(verb, name string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		requests, err := s.Cluster.Audit(s.Began, harness.ControllerUser)
		for _, request := range requests {
			ref := request.ObjectRef
			if request.Verb == verb && ref.Name == name && ref.Subresource == "" && request.Response.Code >= 400 {
				return true, nil
			}
		}
		return false, err
	}, "no %s of %s was refused", verb, name)
}

// noWorkers waits until the controller has deleted the workers of a node.
func (s *suite) noWorkers(workers *recorder, node string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		for _, one := range workers.of(node) {
			if one.gone.IsZero() {
				return false, nil
			}
		}
		return true, nil
	}, "workers of %s stay", node)
}

// part is for a part of the test.
func (s *suite) part(t *testing.T, fault, outcome string) *suite {
	t.Helper()
	return &suite{Suite: s.Part(t), row: harness.BeginRow(t, fault, outcome)}
}

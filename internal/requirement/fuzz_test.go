package requirement

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Kubelet and other clients write what a requirement reads of the Node.
func FuzzRequirement(f *testing.F) {
	const requirements = `[{"condition":"A=True"},{"allocatable":"a.b/c>=1m"},{"csiDriver":"d"},{"label":"a"},{"daemonSet":"a/b","on":{"a":""}}]`
	f.Add(requirements, `{"metadata":{"labels":{"a":""},"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"d\":"}},"status":{"allocatable":{"a.b/c":"1e2147483647"}}}`)
	f.Add(requirements, `{"status":{"allocatable":{"a.b/c":"-.5Ei"},"conditions":[{"type":"A","status":"\u0000"}]}}`)
	f.Add(`[{"allocatable":"cpu>=1e-999999999"},{"allocatable":"cpu>=999999999999999999999Ei"}]`, `{"status":{"allocatable":{"cpu":"1e-2147483649"}}}`)
	f.Add(`[{"on":null,"label":null},null,{"daemonSet":"/"}]`, `null`)
	f.Fuzz(func(t *testing.T, requirements, node string) {
		var list List
		read := new(nodepatch.Node)
		if list.Parse(requirements) != nil || json.Unmarshal([]byte(node), read) != nil {
			return
		}
		for _, e := range list {
			_ = e.IsFor(read)
			why := e.Unmet(read, func(string) ([]Pod, error) { return []Pod{{}}, nil })
			assert.True(t, why != "" || e.Kind != DaemonSet)
		}
	})
}

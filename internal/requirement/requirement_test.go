package requirement

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

func parsed(t *testing.T, text string) (list List) {
	require.NoError(t, list.Parse(text), text)
	return list
}

func TestParse(t *testing.T) {
	list := parsed(t, `[
		{"condition": "NetworkUnavailable=False"},
		{"allocatable": "nvidia.com/gpu>=8", "on": {"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia", "gpu": true}},
		{"allocatable": "nvidia.com/gpu"},
		{"csiDriver": "ebs.csi.aws.com"},
		{"label": "topology.kubernetes.io/zone"},
		{"daemonSet": "kube-system/aws-node", "on": {}}]`)
	var texts []string
	for _, e := range list {
		texts = append(texts, e.String())
	}
	assert.Equal(t, []string{
		"condition NetworkUnavailable=False",
		"allocatable nvidia.com/gpu>=8 on gpu=true on karpenter.k8s.aws/instance-gpu-manufacturer=nvidia",
		"allocatable nvidia.com/gpu", "csiDriver ebs.csi.aws.com", "label topology.kubernetes.io/zone", "daemonSet kube-system/aws-node",
	}, texts)
	assert.Equal(t, []string{"condition", "NetworkUnavailable", "False"}, []string{list[0].Kind, list[0].Name, list[0].Value})
	assert.Equal(t, []string{"allocatable", "nvidia.com/gpu", "8"}, []string{list[1].Kind, list[1].Name, list[1].Value})
	assert.Len(t, parsed(t, `[{"label":"a","on":{"b":true}},{"label":"a","on":{"b":"true"}}]`), 1, "once is enough")
	for _, none := range []string{"", "[]"} {
		assert.Empty(t, parsed(t, none))
	}
}

func TestParseAccepts(t *testing.T) {
	for _, entry := range []string{
		`{"condition":"example.com/Disk=Unknown"}`, `{"condition":"KernelDeadlock=True"}`, `{"allocatable":"cpu>=1500m"}`,
		`{"allocatable":"memory>=64Gi"}`, `{"allocatable":"hugepages-2Mi"}`, `{"allocatable":"attachable-volumes-aws-ebs"}`,
		`{"allocatable":"vpc.amazonaws.com/pod-eni"}`, `{"label":"zone"}`, `{"csiDriver":"Driver.Example"}`,
		`{"daemonSet":"a/b.c","on":{"a/b":""}}`,
	} {
		parsed(t, "["+entry+"]")
	}
}

func TestParseRefuses(t *testing.T) {
	for name, test := range map[string]struct{ text, names string }{
		"no list":              {`{"condition":"A=True"}`, "must be a JSON list"},
		"no JSON":              {`condition A=True`, "must be a JSON list"},
		"unknown kind":         {`[{"taint":"a"}]`, `"taint a" must be one of`},
		"no kind":              {`[{"on":{"a":"b"}}]`, `" on a=b" must be one of`},
		"two kinds":            {`[{"label":"a","condition":"B=True"}]`, `"condition B=Truelabel a" must`},
		"impossible status":    {`[{"condition":"Ready=Yes"}]`, `"condition Ready=Yes" must`},
		"no status":            {`[{"condition":"Ready"}]`, `"condition Ready" must`},
		"bad condition":        {`[{"condition":"a b=True"}]`, `"condition a b=True" must`},
		"unknown own resource": {`[{"allocatable":"gpu"}]`, `"allocatable gpu" must`},
		"bad resource":         {`[{"allocatable":"nvidia.com/"}]`, `"allocatable nvidia.com/" must`},
		"resource of capitals": {`[{"allocatable":"Nvidia.com/gpu"}]`, `"allocatable Nvidia.com/gpu" must`},
		"zero":                 {`[{"allocatable":"nvidia.com/gpu>=0"}]`, `"allocatable nvidia.com/gpu>=0" must`},
		"no quantity":          {`[{"allocatable":"nvidia.com/gpu>="}]`, `must`},
		"an endless exponent":  {`[{"allocatable":"cpu>=1e-999999999"}]`, `"allocatable cpu>=1e-999999999" must`},
		"other operator":       {`[{"allocatable":"nvidia.com/gpu=8"}]`, `must`},
		"negative":             {`[{"allocatable":"nvidia.com/gpu>=-1"}]`, `must`},
		"bad driver":           {`[{"csiDriver":"a/b"}]`, `"csiDriver a/b" must`},
		"bad label":            {`[{"label":"a/b/c"}]`, `"label a/b/c" must`},
		"label with value":     {`[{"label":"a=b"}]`, `"label a=b" must`},
		"no namespace":         {`[{"daemonSet":"aws-node"}]`, `"daemonSet aws-node" must`},
		"no text":              {`[{"label":{"a":"b"}}]`, `must be one of`},
		"null":                 {`[null]`, `"" must be one of`},
		"on is no map":         {`[{"label":"a","on":"b"}]`, `"label aon b" must`},
		"a label with on":      {`[{"label":"zone on a=b"}]`, `"label zone on a=b" must`},
		"on in a value":        {`[{"label":"zone","on":{"a":"b on c=d"}}]`, `"label zone on a=b on c=d" must`},
		"on in a label":        {`[{"label":"zone","on":{"a=b on c":"d"}}]`, `"label zone on a=b on c=d" must`},
		"bad label in on":      {`[{"label":"a","on":{"b c":"d"}}]`, `"label a on b c=d" must`},
		"bad value in on":      {`[{"label":"a","on":{"b":"c d"}}]`, `"label a on b=c d" must`},
		"long name":            {`[{"label":"` + strings.Repeat("a", 64) + `"}]`, `must be one of`},
	} {
		assert.ErrorContains(t, new(List).Parse(test.text), test.names, name)
	}
	err := new(List).Parse(`[{"condition":"Ready"},{"label":"a"},{"taint":"b"}]`)
	require.ErrorContains(t, err, `"condition Ready"`)
	require.ErrorContains(t, err, `"taint b"`, "every mistake at once")
}

// node returns a Node as the API server has sent it.
func node(t *testing.T, text string) *nodepatch.Node {
	node := new(nodepatch.Node)
	require.NoError(t, json.Unmarshal([]byte(text), node))
	return node
}

func pod(owner, ready string) (p Pod) {
	p.Name = owner + "-x"
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: owner}}
	p.Status.Conditions = []nodepatch.Condition{{Type: "Initialized", Status: "True"}, {Type: "Ready", Status: ready}}
	return p
}

func TestUnmet(t *testing.T) {
	now := metav1.Now()
	deleted := pod("b", "True")
	deleted.DeletionTimestamp = &now
	other := pod("b", "True")
	other.OwnerReferences[0].Kind = "ReplicaSet"
	for name, test := range map[string]struct {
		entry, node string
		pods        []Pod
		want        string // "": met
	}{
		"condition":                 {`"condition":"A=False"`, `{"status":{"conditions":[{"type":"B","status":"True"},{"type":"A","status":"False"}]}}`, nil, ""},
		"condition of other status": {`"condition":"A=False"`, `{"status":{"conditions":[{"type":"A","status":"Unknown","reason":"R"}]}}`, nil, "it is Unknown (R)"},
		"no condition":              {`"condition":"A=False"`, `{"status":{"conditions":[{"type":"B","status":"False"}]}}`, nil, "the node has none"},
		"resource":                  {`"allocatable":"a.b/c"`, `{"status":{"allocatable":{"a.b/c":"1"}}}`, nil, ""},
		"resource of 0":             {`"allocatable":"a.b/c"`, `{"status":{"allocatable":{"a.b/c":"0"}}}`, nil, "the node has 0"},
		"resource that overflows":   {`"allocatable":"a.b/c>=1m"`, `{"status":{"allocatable":{"a.b/c":"1e2147483647"}}}`, nil, "the node has none"},
		"resource of an exponent":   {`"allocatable":"a.b/c>=1m"`, `{"status":{"allocatable":{"a.b/c":"1E+12"}}}`, nil, ""},
		"no resource":               {`"allocatable":"a.b/c"`, `{"status":{"allocatable":{"cpu":"1"}}}`, nil, "the node has none"},
		"enough":                    {`"allocatable":"a.b/c>=8"`, `{"status":{"allocatable":{"a.b/c":"8"}}}`, nil, ""},
		"too few":                   {`"allocatable":"a.b/c>=8"`, `{"status":{"allocatable":{"a.b/c":"7"}}}`, nil, "the node has 7"},
		"memory":                    {`"allocatable":"memory>=1Gi"`, `{"status":{"allocatable":{"memory":"1048576Ki"}}}`, nil, ""},
		"too little cpu":            {`"allocatable":"cpu>=4"`, `{"status":{"allocatable":{"cpu":"3920m"}}}`, nil, "the node has 3920m"},
		"driver":                    {`"csiDriver":"d"`, `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"c\":\"1\",\"d\":\"i-1\"}"}}}`, nil, ""},
		"other driver":              {`"csiDriver":"d"`, `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"c\":\"d\"}"}}}`, nil, "the node has none"},
		"no driver":                 {`"csiDriver":"d"`, `{}`, nil, "the node has none"},
		"no JSON of drivers":        {`"csiDriver":"d"`, `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"d"}}}`, nil, "the node has none"},
		"label":                     {`"label":"a/b"`, `{"metadata":{"labels":{"a/b":""}}}`, nil, ""},
		"no label":                  {`"label":"a/b"`, `{"metadata":{"labels":{"a/c":""}}}`, nil, "the node has none"},
		"ready pod":                 {`"daemonSet":"a/b"`, `{}`, []Pod{pod("c", "False"), pod("b", "True")}, ""},
		"late pod":                  {`"daemonSet":"a/b"`, `{}`, []Pod{pod("b", "False")}, "its pod b-x is not ready"},
		"one of two":                {`"daemonSet":"a/b"`, `{}`, []Pod{pod("b", "True"), pod("b", "False")}, ""},
		"pod of a ReplicaSet":       {`"daemonSet":"a/b"`, `{}`, []Pod{other}, "the node has none"},
		"pod that is being deleted": {`"daemonSet":"a/b"`, `{}`, []Pod{deleted}, "the node has none"},
		"no pod":                    {`"daemonSet":"a/b"`, `{}`, nil, "the node has none"},
	} {
		pods := func(namespace string) ([]Pod, error) {
			assert.Equal(t, "a", namespace)
			return test.pods, nil
		}
		assert.Equal(t, test.want, parsed(t, "[{"+test.entry+"}]")[0].Unmet(node(t, test.node), pods), name)
	}
}

func TestPodsThatCannotBeListed(t *testing.T) {
	pods := func(string) ([]Pod, error) { return nil, errors.New("forbidden") }
	assert.Equal(t, "cannot list the node's pods: forbidden", parsed(t, `[{"daemonSet":"a/b"}]`)[0].Unmet(node(t, `{}`), pods))
}

func TestIsForNodesWithTheLabels(t *testing.T) {
	list := parsed(t, `[{"label":"a","on":{"gpu":"nvidia","b":""}},{"daemonSet":"c/d"},{"daemonSet":"c/e","on":{}}]`)
	for text, want := range map[string]bool{`{"gpu":"nvidia","b":"","c":"d"}`: true, `{"gpu":"nvidia"}`: false, `{"gpu":"amd","b":""}`: false} {
		assert.Equal(t, want, list[0].IsFor(node(t, `{"metadata":{"labels":`+text+`}}`)), text)
	}
	assert.True(t, list[1].IsFor(node(t, `{}`)))
	assert.True(t, list[2].IsFor(node(t, `{}`)))
}

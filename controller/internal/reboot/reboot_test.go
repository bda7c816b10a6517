package reboot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/livenode"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const verified = "node-ready/verified"

var keys = nodepatch.Keys{TaintKey: "node-ready/unverified", FailedTaintKey: "node-ready/failed", Label: verified,
	LabelValue: "true"}

// verifiedIn returns a node that was verified in one boot and runs in the boot "now".
func verifiedIn(boot string, name string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1",
		Labels:      map[string]string{verified: "true", "mine": "x"},
		Annotations: map[string]string{nodepatch.Annotation: record.Record{BootID: boot}.String()}}}
	node.Status.NodeInfo.BootID = "now"
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return node
}

// cluster is the nodes of a test, the step, and its last plan.
type cluster struct {
	Unlabeler
	t      *testing.T
	api    client.Client
	refuse map[string]bool // patches of these nodes
	keeps  bool            // a webhook puts the label back
	logged strings.Builder
}

func newCluster(t *testing.T, nodes ...*corev1.Node) *cluster {
	builder := fake.NewClientBuilder()
	for _, node := range nodes {
		builder.WithObjects(node)
	}
	c := &cluster{t: t, api: builder.Build(), refuse: make(map[string]bool)}
	c.Unlabeler = Unlabeler{Limit: rate.NewLimiter(5, 5), Log: slog.New(slog.NewTextHandler(&c.logged, nil)),
		Settings: fleet.Settings{Rules: fleet.NewRules(new(corev1.PodTemplateSpec), keys), Keys: keys},
		Node:     func(name string) nodepatch.NodeAPI { return refusing{livenode.API{Client: c.api, Name: name}, c} }}
	return c
}

// refusing refuses the patches that a test says.
type refusing struct {
	livenode.API
	cluster *cluster
}

func (n refusing) Patch(ctx context.Context, patch []byte) (*nodepatch.Node, error) {
	if n.cluster.refuse[n.Name] {
		return nil, errors.New("refused")
	}
	if n.cluster.keeps {
		return n.Get(ctx)
	}
	return n.API.Patch(ctx, patch)
}

// act lets the step act on a plan, once it has known its nodes for as long as it takes.
func (c *cluster) act(plan fleet.Plan) (time.Duration, error) {
	_, err := c.Act(c.t.Context(), plan)
	require.NoError(c.t, err)
	plan.At = clock.At(time.Now().Add(admitsFor), time.Time{})
	return c.Act(c.t.Context(), plan)
}

func (c *cluster) plan() fleet.Plan {
	var nodes corev1.NodeList
	require.NoError(c.t, c.api.List(c.t.Context(), &nodes))
	return c.Settings.Decide(fleet.Objects{Nodes: nodes.Items}, clock.At(time.Now(), time.Now()))
}

// labelled counts the nodes that have the label.
func (c *cluster) labelled() (n int) {
	for _, status := range c.plan().Statuses {
		if status.State == fleet.Verified {
			n++
		}
	}
	return n
}

func TestLabelOfARebootedNode(t *testing.T) {
	for name, test := range map[string]struct {
		boot    string
		edit    func(*corev1.Node)
		removed bool
	}{
		"rebooted":     {"before", nil, true},
		"not rebooted": {"now", nil, false},
		"released by a version that names no boot": {"", nil, false},
		"kubelet has not reported its boot":        {"before", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "" }, false},
		"not ready": {"before", func(n *corev1.Node) {
			n.Status.Conditions[0].Status = corev1.ConditionFalse
		}, false},
		"cordoned":                      {"before", func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		"excluded by the label's value": {"before", func(n *corev1.Node) { n.Labels[verified] = "false" }, false},
		"it has the startup taint": {"before", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "node-ready/unverified"}}
		}, false},
		"an agent would not come": {"before", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "other", Effect: "NoExecute"}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			node := verifiedIn(test.boot, "n")
			if test.edit != nil {
				test.edit(node)
			}
			c := newCluster(t, node.DeepCopy())
			_, err := c.act(c.plan())
			require.NoError(t, err)
			found := new(corev1.Node)
			require.NoError(t, c.api.Get(t.Context(), client.ObjectKey{Name: "n"}, found))
			if test.removed {
				delete(node.Labels, verified)
			}
			assert.Equal(t, node.Labels, found.Labels)
			assert.Equal(t, node.Annotations, found.Annotations)
		})
	}
}

// A webhook puts the label back: that is an error, and no crash.
func TestLabelThatIsPutBack(t *testing.T) {
	c := newCluster(t, verifiedIn("before", "n"))
	c.keeps = true
	_, err := c.act(c.plan())
	require.Error(t, err)
	assert.Equal(t, 1, c.labelled())
	assert.Empty(t, c.logged.String(), "the label is still there")
}

// A whole fleet reboots at once: the limit bounds what is removed. A node whose patch is refused holds no other node.
func TestFleetThatReboots(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 20 {
		nodes = append(nodes, verifiedIn("before", fmt.Sprint("n", i)))
	}
	c := newCluster(t, nodes...)
	c.Limit.SetLimit(0) // a slow test would get more than the first five
	again, err := c.act(c.plan())
	require.NoError(t, err)
	assert.Positive(t, again)
	assert.Equal(t, 15, c.labelled())

	c.Limit.SetLimit(1e6)
	c.refuse["n3"], c.refuse["n4"] = true, true
	for range 10 {
		_, _ = c.act(c.plan())
	}
	assert.LessOrEqual(t, c.labelled(), 2)
}

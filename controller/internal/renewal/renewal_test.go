package renewal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const conditionType = "NodeVerified"

// cluster has agents that never pass, a DaemonSet that replaces their pods at once, and a controller.
type cluster struct {
	*testing.T
	client.Client
	settings breaker.Settings
	now      time.Time
	group    baseline.State
	seen     fleet.Memory
	plan     fleet.Plan
	made     int
	renewed  []string // the Events, by node
	deleting error
	unknown  bool // the API server's clock is not known
	log      bytes.Buffer
}

func newCluster(t *testing.T, nodes int) *cluster {
	keys := nodepatch.Keys{TaintKey: "startup", FailedTaintKey: "failed", Label: "verified", LabelValue: "true"}
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "startup", Operator: corev1.TolerationOpExists}}}}
	c := &cluster{T: t, now: time.Now().Truncate(time.Second), settings: breaker.Settings{ControlGroupFor: baseline.Interval, Fleet: fleet.Settings{
		Rules: fleet.NewRules(template, keys), Keys: keys, ConditionType: conditionType,
		NotStartedAfter: 3 * time.Minute, FailedAfter: 5 * time.Minute, SilentAfter: 6 * time.Minute}}}
	c.Client = fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{Delete: func(ctx context.Context, inner client.WithWatch,
		object client.Object, options ...client.DeleteOption) error {
		if c.deleting != nil {
			return c.deleting
		}
		var o client.DeleteOptions
		for _, option := range options {
			option.ApplyToDelete(&o)
		}
		p := o.Preconditions // a pod that has changed since the plan may be ready now
		if p == nil || *p.UID != object.GetUID() || p.ResourceVersion == nil || *p.ResourceVersion != object.GetResourceVersion() {
			return errors.New("a pod is deleted without its uid and version as preconditions")
		}
		return inner.Delete(ctx, object, options...)
	}}).Build()
	c.group = baseline.State{PassedSince: mark(c.now.Add(-time.Hour))}
	for i := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint("n", i))},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "startup"}}}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		require.NoError(t, c.Create(t.Context(), node))
	}
	c.makePods()
	return c
}

// makePods is the DaemonSet controller, and kubelet.
func (c *cluster) makePods() {
	c.Helper()
	var nodes corev1.NodeList
	var pods corev1.PodList
	require.NoError(c, c.List(c.Context(), &nodes))
	require.NoError(c, c.List(c.Context(), &pods))
	has := make(map[string]bool)
	for _, pod := range pods.Items {
		has[pod.Spec.NodeName] = true
	}
	yes := true
	for _, node := range nodes.Items {
		if has[node.Name] {
			continue
		}
		c.made++
		name := fmt.Sprint("agent-", c.made)
		require.NoError(c, c.Create(c.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(c.now),
				OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent", UID: "d", Controller: &yes}}},
			Spec: corev1.PodSpec{NodeName: node.Name},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{ContainerID: name,
				State: corev1.ContainerState{Running: new(corev1.ContainerStateRunning)}}}},
		}))
	}
}

// fail writes the condition of all nodes, as agents or the controller do.
func (c *cluster) fail(reason string) {
	var nodes corev1.NodeList
	require.NoError(c, c.List(c.Context(), &nodes))
	for i := range nodes.Items {
		node := &nodes.Items[i]
		node.Status.Conditions = append(node.Status.Conditions[:1], corev1.NodeCondition{Type: conditionType, Status: corev1.ConditionFalse,
			Reason: reason, Message: "why", LastTransitionTime: metav1.NewTime(c.now), LastHeartbeatTime: metav1.NewTime(c.now)})
		c.save(node)
	}
}

// save updates an object and its status.
func (c *cluster) save(object client.Object) {
	c.Helper()
	status, _ := object.DeepCopyObject().(client.Object)
	require.NoError(c, c.Status().Update(c.Context(), status))
	object.SetResourceVersion(status.GetResourceVersion())
	require.NoError(c, c.Update(c.Context(), object))
}

// lead starts another controller, which has seen nothing but a control group that passes.
func (c *cluster) lead() *Renewer {
	c.seen = fleet.Memory{}
	return &Renewer{Settings: c.settings, Client: c.Client, Actor: act.Actor{
		Plan: func() (fleet.Plan, error) { return c.plan, nil }, ControlGroup: func() baseline.State { return c.group },
		Now: c.clock, Timeout: time.Minute, Events: c, Log: slog.New(slog.NewTextHandler(&c.log, nil))}}
}

func (c *cluster) clock() clock.Now { return clock.At(c.now, c.serverNow()) }

// mark is a moment by the process's own clock.
func mark(at time.Time) clock.Mark { return clock.At(at, at).Mark() }

func (c *cluster) serverNow() time.Time {
	if c.unknown {
		return time.Time{}
	}
	return c.now
}

// Eventf implements events.EventRecorder.
func (c *cluster) Eventf(about, _ runtime.Object, _, reason, _, note string, args ...any) {
	c.renewed = append(c.renewed, about.(*corev1.Node).Name+" "+reason+": "+fmt.Sprintf(note, args...))
}

// after lets time pass: every 10 s a plan and a decision.
func (c *cluster) after(d time.Duration, r *Renewer) {
	for end := c.now.Add(d); c.now.Before(end); {
		c.now = c.now.Add(10 * time.Second)
		if !c.group.PassedSince.IsZero() {
			c.group.Began, c.group.Ended = mark(c.now), mark(c.now)
		}
		var nodes corev1.NodeList
		var pods corev1.PodList
		require.NoError(c, c.List(c.Context(), &nodes))
		require.NoError(c, c.List(c.Context(), &pods))
		c.plan = c.settings.Fleet.Decide(fleet.Objects{Nodes: nodes.Items, Pods: pods.Items, Seen: c.seen}, c.clock())
		c.seen = c.plan.Seen
		before := len(c.renewed)
		r.Once(c.Context(), r.act)
		assert.LessOrEqual(c, len(c.renewed), before+1, "one in 10 s")
		c.makePods()
	}
}

// Once, then after 10, 20, 40 and 40 minutes, whatever leader decides.
func TestOneNode(t *testing.T) {
	for _, reason := range []string{"DNSFailed", "Silent"} {
		for name, restart := range map[string]bool{"one leader": false, "a new leader every 17 minutes": true} {
			t.Run(reason+" "+name, func(t *testing.T) {
				c := newCluster(t, 1)
				leader := c.lead()
				c.after(6*time.Minute, leader)
				assert.Empty(t, c.renewed)
				c.fail(reason)
				var at []int
				for began := c.now; c.now.Sub(began) < 3*time.Hour; {
					before := len(c.renewed)
					c.after(10*time.Second, leader)
					if len(c.renewed) > before {
						at = append(at, int(c.now.Sub(began).Round(time.Minute).Minutes()))
					}
					if restart && c.now.Sub(began)%(17*time.Minute) == 0 {
						leader = c.lead()
					}
				}
				late := 2
				if restart { // each leader lets the agent run for seven minutes
					late = 9
				}
				require.Len(t, at, 6)
				last := 0
				for i, pause := range []int{0, 10, 20, 40, 40, 40} {
					assert.GreaterOrEqual(t, at[i]-last, pause)
					assert.LessOrEqual(t, at[i]-last, pause+late)
					last = at[i]
				}
				assert.Contains(t, c.renewed[0], "n0 SandboxRenewed: pod agent-1 was deleted, the next one gets a fresh sandbox: "+reason+": why")
			})
		}
	}
}

// At most one in 10 s, and each of them before one of them again.
func TestManyNodes(t *testing.T) {
	c := newCluster(t, 20)
	leader := c.lead()
	c.after(6*time.Minute, leader)
	c.fail("NetworkFailed")
	c.after(9*time.Minute, leader)
	assert.Len(t, c.renewed, 20)
	assert.Equal(t, 40, c.made)
}

// Each of these keeps its pod. TestNotRenewable has what an agent does, and its node.
func TestNotDue(t *testing.T) {
	for name, change := range map[string]func(*cluster, *corev1.Node, *corev1.Pod){
		"cordoned":                  func(_ *cluster, n *corev1.Node, _ *corev1.Pod) { n.Spec.Unschedulable = true },
		"True":                      func(_ *cluster, n *corev1.Node, _ *corev1.Pod) { n.Status.Conditions[1].Status = corev1.ConditionTrue },
		"another condition":         func(_ *cluster, n *corev1.Node, _ *corev1.Pod) { n.Status.Conditions[1].Type = "Other" },
		"it does not run":           func(_ *cluster, _ *corev1.Node, p *corev1.Pod) { p.Status.ContainerStatuses = nil },
		"the control group fails":   func(c *cluster, _ *corev1.Node, _ *corev1.Pod) { c.group.PassedSince = clock.Mark{} },
		"the time is not known yet": func(c *cluster, _ *corev1.Node, _ *corev1.Pod) { c.unknown = true },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			leader := c.lead()
			c.after(6*time.Minute, leader)
			c.fail("DNSFailed")
			var node corev1.Node
			var pod corev1.Pod
			require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "n0"}, &node))
			require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "system", Name: "agent-1"}, &pod))
			change(c, &node, &pod)
			c.save(&node)
			c.save(&pod)
			c.after(time.Minute, leader)
			assert.Empty(t, c.renewed)
			assert.Equal(t, 1, c.made)
		})
	}
}

// The control group must have passed since the node failed, for longer than a round, and where agents recheck for as long as they
// take to recover.
func TestControlGroup(t *testing.T) {
	c := newCluster(t, 1)
	c.settings.Fleet.Rechecks = fleet.Rechecks{Interval: time.Minute, FailureThreshold: 3, RecoveryThreshold: 3}
	leader := c.lead()
	c.after(6*time.Minute, leader)
	c.group = baseline.State{}
	c.fail("DNSFailed")
	c.after(20*time.Minute, leader)
	assert.Empty(t, c.renewed)
	c.group.PassedSince = mark(c.now)
	c.after(4*time.Minute, leader)
	assert.Empty(t, c.renewed)
	c.after(10*time.Second, leader)
	assert.Len(t, c.renewed, 1)
}

// An outage may reach the node first: a round of the control group that began before the failure says nothing. Nor does an old plan.
func TestWhatIsOldDoesNotCount(t *testing.T) {
	c := newCluster(t, 1)
	leader := c.lead()
	c.after(6*time.Minute, leader)
	c.fail("DNSFailed")
	c.group.PassedSince = clock.Mark{}
	c.after(10*time.Second, leader)
	c.group = baseline.State{PassedSince: mark(c.now.Add(-time.Hour)), Began: mark(c.now.Add(-time.Minute)), Ended: mark(c.now)}
	leader.Once(t.Context(), leader.act)
	assert.Empty(t, c.renewed, "the round is old")
	c.group.Began = mark(c.now)
	made := c.now
	c.now = c.now.Add(time.Minute)
	leader.Once(t.Context(), leader.act)
	assert.Empty(t, c.renewed, "the plan is old")
	c.now = made
	leader.Once(t.Context(), leader.act)
	assert.Len(t, c.renewed, 1)
}

// A pod that has changed is no news. A webhook that refuses each deletion is, once an hour.
func TestRefusedDeletionsInTheLog(t *testing.T) {
	c := newCluster(t, 1)
	leader := c.lead()
	c.after(6*time.Minute, leader)
	c.fail("DNSFailed")
	c.deleting = apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "agent-1", errors.New("it has changed"))
	c.after(time.Minute, leader)
	assert.NotContains(t, c.log.String(), "it has changed")
	c.deleting = errors.New("a webhook denies it")
	c.after(3*time.Hour, leader)
	assert.Equal(t, 3, strings.Count(c.log.String(), "a webhook denies it"))
}

package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// namespace is an API server that has Events about many pods, two a page.
type namespace struct {
	client.Reader
	events []corev1.Event
	pages  int
}

func (n *namespace) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	n.pages++
	var o client.ListOptions
	for _, option := range options {
		option.ApplyToList(&o)
	}
	first := 0
	_, _ = fmt.Sscan(o.Continue, &first)
	last := min(first+2, len(n.events))
	found := list.(*corev1.EventList)
	found.Items, found.Continue = n.events[first:last], ""
	if last < len(n.events) {
		found.Continue = fmt.Sprint(last)
	}
	return nil
}

// However many pods are to be looked up, the Events are listed once.
func TestEventsOfAllPodsAtOnce(t *testing.T) {
	server := new(namespace)
	var plan fleet.Plan
	for i := range 20 {
		uid := types.UID(fmt.Sprint(i))
		server.events = append(server.events, corev1.Event{InvolvedObject: corev1.ObjectReference{UID: uid}, Reason: "Pulling"})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: "system", ResourceVersion: "1"}}
		plan.Statuses = append(plan.Statuses, fleet.Status{Node: new(corev1.Node), Pod: pod, Finding: fleet.Finding{State: fleet.Pending, EventsWanted: i < 10}})
	}
	silent := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "silent", Namespace: "system", ResourceVersion: "1"}}
	plan.Statuses = append(plan.Statuses, fleet.Status{Node: new(corev1.Node), Pod: silent, Finding: fleet.Finding{State: fleet.Pending, EventsWanted: true}})

	l := newLoop(new(lists))
	l.Live = server
	again, err := l.lookUp(t.Context(), plan)
	require.NoError(t, err)
	assert.Positive(t, again)
	assert.Equal(t, 10, server.pages)
	assert.Len(t, l.events, 11, "only those that were asked for")
	assert.Len(t, l.events["3"].list, 1)
	assert.NotNil(t, l.events["silent"].list, "read, and there are none")

	plan.Statuses[3].Pod.ResourceVersion = "2"
	again, err = l.lookUp(t.Context(), plan)
	require.NoError(t, err)
	assert.Equal(t, 10, server.pages, "not yet")
	assert.Greater(t, again, time.Second)
	assert.Len(t, l.events["3"].list, 1, "an old finding stands until there is a new one")

	l.looked = l.looked.Add(-betweenLookUps)
	server.events = nil
	_, err = l.lookUp(t.Context(), plan)
	require.NoError(t, err)
	assert.Equal(t, 11, server.pages)
	assert.Empty(t, l.events["3"].list)
	assert.Len(t, l.events["4"].list, 1)

	_, err = l.lookUp(t.Context(), fleet.Plan{})
	require.NoError(t, err)
	assert.Empty(t, l.events, "the pods are gone")
}

// secondPageFails is an API server that is too slow for the second page of the Events.
type secondPageFails struct {
	client.Reader
	items []corev1.Event
	pages int
}

func (s *secondPageFails) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if s.pages++; s.pages%2 == 0 {
		return context.DeadlineExceeded
	}
	found := list.(*corev1.EventList)
	found.Items = s.items
	found.Continue = "2"
	return nil
}

// Where the API server never lists all Events in time, the Events that it lists count, and the other pods wait until a limit.
func TestEventsThatCannotAllBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var plan fleet.Plan
		for _, uid := range []types.UID{"first", "second"} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: "system", ResourceVersion: "1"}}
			plan.Statuses = append(plan.Statuses, fleet.Status{Node: new(corev1.Node), Pod: pod, Finding: fleet.Finding{State: fleet.Pending, EventsWanted: true}})
		}
		l := newLoop(new(lists))
		event := func(pod types.UID) corev1.Event {
			return corev1.Event{InvolvedObject: corev1.ObjectReference{UID: pod}, Reason: "FailedCreatePodSandBox"}
		}
		server := &secondPageFails{items: []corev1.Event{event("first")}}
		l.Live = server
		lookUp := func() {
			_, err := l.lookUp(t.Context(), plan)
			require.Error(t, err)
			assert.Len(t, l.events["first"].list, 1)
		}
		lookUp()
		assert.Nil(t, l.events["second"].list, "one request that fails says nothing about the pod")
		time.Sleep(unreadFor)
		lookUp()
		assert.NotNil(t, l.events["second"].list)
		server.items = append(server.items, event("second"))
		time.Sleep(betweenLookUps)
		lookUp()
		assert.Len(t, l.events["second"].list, 1, "it has come into reach")
		server.items = server.items[:1]
		_, err := l.lookUp(t.Context(), fleet.Plan{})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		lookUp()
		assert.Nil(t, l.events["second"].list, "nothing was wanted for long: no request has failed in the meantime")
		time.Sleep(betweenLookUps)
		l.Live = new(namespace)
		_, err = l.lookUp(t.Context(), plan)
		require.NoError(t, err)
		assert.Empty(t, l.events["first"].list, "read again as soon as that is possible")
	})
}

// A verified node whose agent's pod does not start is looked up as well, until its pod starts.
func TestEventsOfAPodOnAVerifiedNode(t *testing.T) {
	server := &namespace{events: []corev1.Event{{InvolvedObject: corev1.ObjectReference{UID: "p"}, Reason: "FailedCreatePodSandBox"}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p", ResourceVersion: "1"}}
	l := newLoop(new(lists))
	l.Live = server
	status := fleet.Status{Node: new(corev1.Node), Pod: pod, Finding: fleet.Finding{State: fleet.Verified, EventsWanted: true},
		Absence: fleet.Absence{Is: true}}
	for range 3 { // also if the Events name no reason: they are not read again
		_, err := l.lookUp(t.Context(), fleet.Plan{Statuses: []fleet.Status{status}})
		require.NoError(t, err)
		assert.Len(t, l.events["p"].list, 1)
		status.EventsWanted = false
	}
	assert.Equal(t, 1, server.pages)
	status.Absence = fleet.Absence{} // an agent runs
	_, err := l.lookUp(t.Context(), fleet.Plan{Statuses: []fleet.Status{status}})
	require.NoError(t, err)
	assert.Empty(t, l.events)
}

// inJSON is an API server that answers in JSON: what a page does not say stays as it is in the list that it is read into.
type inJSON struct {
	client.Reader
	pages int
}

func (j *inJSON) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch j.pages++; j.pages {
	case 1:
		return json.Unmarshal([]byte(`{"metadata":{"continue":"2"},"items":[{"involvedObject":{"uid":"p"},"reason":"Failed","message":"of another"}]}`), list)
	case 2:
		return json.Unmarshal([]byte(`{"metadata":{},"items":[{"involvedObject":{"uid":"p"},"reason":"Pulling"}]}`), list)
	}
	return errors.New("there is no third page")
}

func TestPagesInJSON(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p", Namespace: "system"}}
	l := newLoop(new(lists))
	l.Live = new(inJSON)
	_, err := l.lookUp(t.Context(), fleet.Plan{Statuses: []fleet.Status{{Node: new(corev1.Node), Pod: pod, Finding: fleet.Finding{State: fleet.Pending, EventsWanted: true}}}})
	require.NoError(t, err)
	require.Len(t, l.events["p"].list, 2)
	assert.Empty(t, l.events["p"].list[1].Message)
}

// eventLists counts the lists of Events that had time.
type eventLists struct {
	*lists
	inTime int
}

func (l *eventLists) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, isEvents := list.(*corev1.EventList); !isEvents {
		return l.lists.List(ctx, list, options...)
	}
	if ctx.Err() == nil {
		l.inTime++
	}
	return ctx.Err()
}

// Steps that hang, as writes of conditions that an unreachable webhook delays, leave time to read the Events: without them a node
// whose agent does not start would never fail.
func TestEventsAreReadBesideStepsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gated := verifiedNode()
		gated.Labels, gated.Spec.Taints = nil, []corev1.Taint{{Key: "startup"}}
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"}, Spec: corev1.PodSpec{NodeName: "a"},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}}}
		cache := &eventLists{lists: &lists{nodes: []corev1.Node{gated}, pods: []corev1.Pod{pod}}}
		l := newLoop(cache.lists, hanging{}, hanging{})
		l.Cache, l.Live, l.Settings.NotStartedAfter = cache, cache, 3*time.Minute
		for range 60 {
			result, err := l.Reconcile(t.Context(), reconcile.Request{})
			require.NoError(t, err)
			time.Sleep(result.RequeueAfter)
		}
		plan, _ := l.Last()
		assert.Equal(t, fleet.Failed, plan.Statuses[0].State)
		assert.Positive(t, cache.inTime)
	})
}

package loop

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
		plan.Statuses = append(plan.Statuses, fleet.Status{Node: new(corev1.Node), Pod: pod, State: fleet.Pending, EventsWanted: i < 10})
	}
	silent := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "silent", Namespace: "system", ResourceVersion: "1"}}
	plan.Statuses = append(plan.Statuses, fleet.Status{Node: new(corev1.Node), Pod: silent, State: fleet.Pending, EventsWanted: true})

	l := newLoop(new(lists))
	l.Live = server
	again, err := lookUp{l}.Act(t.Context(), plan)
	require.NoError(t, err)
	assert.Positive(t, again)
	assert.Equal(t, 10, server.pages)
	assert.Len(t, l.events, 11, "only those that were asked for")
	assert.Len(t, l.events["3"].list, 1)
	assert.NotNil(t, l.events["silent"].list, "read, and there are none")

	plan.Statuses[3].Pod.ResourceVersion = "2"
	again, err = lookUp{l}.Act(t.Context(), plan)
	require.NoError(t, err)
	assert.Equal(t, 10, server.pages, "not yet")
	assert.Greater(t, again, time.Second)
	assert.Len(t, l.events["3"].list, 1, "an old finding stands until there is a new one")

	l.looked = l.looked.Add(-betweenLookUps)
	server.events = nil
	_, err = lookUp{l}.Act(t.Context(), plan)
	require.NoError(t, err)
	assert.Equal(t, 11, server.pages)
	assert.Empty(t, l.events["3"].list)
	assert.Len(t, l.events["4"].list, 1)

	_, err = lookUp{l}.Act(t.Context(), fleet.Plan{})
	require.NoError(t, err)
	assert.Empty(t, l.events, "the pods are gone")
}

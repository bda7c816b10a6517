package karpenter

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// state is an object as it was at one moment. The revision orders all of them, whatever their kind: it is that of the one store
// behind them, and does not depend on when a watch delivered what.
type state struct {
	kind     schema.GroupVersionResource
	object   *unstructured.Unstructured
	deleted  bool
	revision uint64
	at       time.Time // when it was seen
}

func (s state) name() string { return s.object.GetName() }

func (s state) node() *corev1.Node { return as[corev1.Node](s) }
func (s state) pod() *corev1.Pod   { return as[corev1.Pod](s) }

func as[T any](s state) *T {
	into := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(s.object.Object, into); err != nil {
		panic(err)
	}
	return into
}

// condition reports whether the object's status has a condition that is True.
func (s state) condition(kind string) bool {
	list, _, _ := unstructured.NestedSlice(s.object.Object, "status", "conditions")
	for _, each := range list {
		if condition, ok := each.(map[string]any); ok && condition["type"] == kind {
			return condition["status"] == "True"
		}
	}
	return false
}

// timeline is everything that happened to nodes, node claims and pods.
type timeline struct {
	mu      sync.Mutex
	states  []state
	changed chan struct{}
}

// watch begins with what is there. The API server ends a watch that is slow to be read: it goes on then from where it was.
func watch(ctx context.Context, t *testing.T, client *dynamic.DynamicClient) *timeline {
	t.Helper()
	tl := &timeline{changed: make(chan struct{})}
	for _, kind := range []schema.GroupVersionResource{nodes, nodeClaims, pods} {
		there, err := client.Resource(kind).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for i := range there.Items {
			tl.add(state{kind: kind, object: &there.Items[i], at: time.Now()})
		}
		events, err := watchtools.NewRetryWatcherWithContext(ctx, there.GetResourceVersion(), &cache.ListWatch{
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
				return client.Resource(kind).Watch(ctx, options)
			},
		})
		require.NoError(t, err)
		t.Cleanup(events.Stop)
		go func() {
			for event := range events.ResultChan() {
				object, ok := event.Object.(*unstructured.Unstructured)
				if ok && (event.Type == apiwatch.Added || event.Type == apiwatch.Modified || event.Type == apiwatch.Deleted) {
					tl.add(state{kind: kind, object: object, deleted: event.Type == apiwatch.Deleted, at: time.Now()})
				}
			}
		}()
	}
	return tl
}

func (tl *timeline) add(s state) {
	s.revision, _ = strconv.ParseUint(s.object.GetResourceVersion(), 10, 64)
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.states = append(tl.states, s)
	close(tl.changed)
	tl.changed = make(chan struct{})
}

// await returns the first state that is as wanted, which may be over.
func (tl *timeline) await(ctx context.Context, kind schema.GroupVersionResource, wanted func(state) bool) (state, error) {
	for next := 0; ; {
		tl.mu.Lock()
		states, changed := tl.states, tl.changed
		tl.mu.Unlock()
		for ; next < len(states); next++ {
			if states[next].kind == kind && wanted(states[next]) {
				return states[next], nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return state{}, ctx.Err()
		}
	}
}

// now returns the last state of every object of a kind that is still there, of those that are as wanted.
func (tl *timeline) now(kind schema.GroupVersionResource, wanted func(state) bool) map[string]state {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	latest := make(map[string]state)
	for _, s := range tl.states {
		if s.kind == kind {
			latest[s.name()] = s
		}
	}
	maps.DeleteFunc(latest, func(_ string, s state) bool { return s.deleted || !wanted(s) })
	return latest
}

// everMade counts the objects of a kind that were ever there.
func (tl *timeline) everMade(kind schema.GroupVersionResource) int {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	names := make(map[string]bool)
	for _, s := range tl.states {
		if s.kind == kind {
			names[s.name()] = true
		}
	}
	return len(names)
}

// step is one line of the story.
type step struct {
	what string
	state
}

// printSteps prints them with their times since the first.
func printSteps(t *testing.T, steps []step) {
	t.Helper()
	var text strings.Builder
	for i, s := range steps {
		since := s.at.Sub(steps[max(0, i-1)].at)
		fmt.Fprintf(&text, "%7.2f s  %+6.2f  %s\n", s.at.Sub(steps[0].at).Seconds(), since.Seconds(), s.what)
	}
	t.Logf("\n%s", text.String())
}

// inOrder asserts that each step came after the one before it.
func inOrder(t *testing.T, steps ...step) {
	t.Helper()
	for i := 1; i < len(steps); i++ {
		require.Greater(t, steps[i].revision, steps[i-1].revision, "%q must come after %q", steps[i].what, steps[i-1].what)
	}
}

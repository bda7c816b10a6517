package recheck

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// What a recorder sees on a node, apart from the condition.
const (
	added   = "failed taint added"
	removed = "failed taint removed"
)

// change is one change of a node.
type change struct {
	at   time.Time
	node string
	what string // added, removed, or the condition with its reason
}

// recorder has every change of the failed taint and of the condition since its start: a watch shows all of them.
type recorder struct {
	mu      sync.Mutex
	last    map[string]*corev1.Node
	changes []change
}

// record starts a recorder, which works until the test ends and prints what it has seen.
func (s *suite) record() *recorder {
	s.T.Helper()
	r := &recorder{last: make(map[string]*corev1.Node)}
	list, err := s.Cluster.Kube.CoreV1().Nodes().List(s.Ctx, metav1.ListOptions{})
	s.NoError(err)
	for i := range list.Items {
		r.last[list.Items[i].Name] = &list.Items[i]
	}
	s.Undo(func(context.Context) error { // after the watch has stopped
		s.T.Log(r.timeline(s.Began))
		return nil
	})
	harness.Watch(s.Suite, s.Cluster.Kube.CoreV1().Nodes(), list.ResourceVersion, "", func(_ watch.EventType, node *corev1.Node) { r.add(node) })
	return r
}

func (r *recorder) add(node *corev1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	before := r.last[node.Name]
	r.last[node.Name] = node
	if before == nil {
		before = &corev1.Node{}
	}
	switch was, is := harness.HasTaint(before, failedTaint), harness.HasTaint(node, failedTaint); {
	case is && !was:
		r.changes = append(r.changes, change{now, node.Name, added})
	case was && !is:
		r.changes = append(r.changes, change{now, node.Name, removed})
	}
	if shown := condition(node); shown != condition(before) {
		r.changes = append(r.changes, change{now, node.Name, shown})
	}
}

// condition returns status and reason of the node's condition.
func condition(node *corev1.Node) string {
	found := harness.Condition(node, harness.ConditionType)
	if found == nil {
		return "no condition"
	}
	return string(found.Status) + " " + found.Reason
}

// conditions returns what the condition of a node has been since the start, in order.
func (r *recorder) conditions(node string) (found []string) {
	for _, change := range r.all() {
		if change.node == node && change.what != added && change.what != removed {
			found = append(found, change.what)
		}
	}
	return found
}

// all returns every change.
func (r *recorder) all() []change {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]change(nil), r.changes...)
}

// taints returns the changes of failed taints until now, by node: the watch may be behind what the test has read.
func (s *suite) taints() map[string][]string {
	s.T.Helper()
	list, err := s.Cluster.Kube.CoreV1().Nodes().List(s.Ctx, metav1.ListOptions{})
	s.NoError(err)
	for _, node := range list.Items {
		s.Until(func() (bool, error) { return s.seen.hasSeen(&node), s.Ctx.Err() }, "the watch does not show %s", node.Name)
	}
	return s.seen.taints()
}

// hasSeen reports whether the watch has shown this version of a node, or a newer one.
func (r *recorder) hasSeen(node *corev1.Node) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.last[node.Name]
	if last == nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(last.ResourceVersion, node.ResourceVersion)
	return err == nil && order >= 0
}

// taints returns the changes of failed taints, by node.
func (r *recorder) taints() map[string][]string {
	found := make(map[string][]string)
	for _, change := range r.all() {
		if change.what == added || change.what == removed {
			found[change.node] = append(found[change.node], change.what)
		}
	}
	return found
}

// taintsBut is taints without those of some nodes.
func (r *recorder) taintsBut(nodes ...string) map[string][]string {
	found := r.taints()
	for _, node := range nodes {
		delete(found, node)
	}
	return found
}

func (r *recorder) timeline(since time.Time) string {
	var text strings.Builder
	for _, change := range r.all() {
		_, _ = fmt.Fprintf(&text, "\n%6.1fs  %-8s %s", change.at.Sub(since).Seconds(), change.node, change.what)
	}
	return text.String()
}

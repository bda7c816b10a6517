package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Writer is another client of a Node: it has up to two taints and a label or an annotation of its
// own, changes them all the time, and checks each time that they are as it left them.
type Writer struct {
	s    *Suite
	node string
	key  string // of its label or annotation, and how its taints' keys begin

	mu     sync.Mutex
	change *sync.Cond
	n      int // writes so far
	over   bool
	taints []string // its own, as it left them
	mark   string   // "label " or "annotation " and key
	lost   []string
}

// NewWriter returns a writer of a node. key tells its taints, label and annotation from those of others.
func NewWriter(s *Suite, node, key string) *Writer {
	w := &Writer{s: s, node: node, key: "writer-" + key}
	w.change = sync.NewCond(&w.mu)
	return w
}

// Run writes until ctx ends. Its requests are finished: it always knows what it has done.
func (w *Writer) Run(ctx context.Context, write func(node *corev1.Node, taints []string) error) {
	defer func() {
		w.mu.Lock()
		w.over = true
		w.mu.Unlock()
		w.change.Broadcast()
	}()
	for ctx.Err() == nil && w.s.Ctx.Err() == nil {
		node, err := w.s.Cluster.Node(w.s.Ctx, w.node)
		if err != nil {
			continue
		}
		w.compare(node)
		// Two come and two go, so that the index of everybody else's taints changes.
		taints := slices.Clone(w.taints)
		if w.n%4 < 2 {
			taints = append(taints, w.key+"-"+strconv.Itoa(w.n))
		} else {
			taints = taints[1:]
		}
		switch err := write(node, taints); {
		case err == nil:
			w.mu.Lock()
			w.n, w.taints = w.n+1, taints
			w.mu.Unlock()
			w.change.Broadcast()
		case apierrors.IsConflict(err), apierrors.IsInvalid(err): // somebody else was faster
		default:
			w.lost = append(w.lost, fmt.Sprintf("the writer %s itself: %v", w.key, err))
			return
		}
	}
}

// compare finds what is not on the node as it was left there.
func (w *Writer) compare(node *corev1.Node) {
	var found []string
	for _, taint := range node.Spec.Taints {
		if strings.HasPrefix(taint.Key, w.key) {
			found = append(found, taint.Key)
		}
	}
	for _, taint := range w.taints {
		if !slices.Contains(found, taint) {
			w.lost = append(w.lost, "taint "+taint)
		}
	}
	if len(found) > len(w.taints) {
		w.lost = append(w.lost, fmt.Sprintf("the removal of one of %v", found))
	}
	// What is lost is lost once.
	w.taints = found
}

// Update writes the whole object, with the resource version that was read, and puts its taints in front.
func (w *Writer) Update(node *corev1.Node, taints []string) error {
	var list []corev1.Taint
	for _, key := range slices.Backward(taints) {
		list = append(list, corev1.Taint{Key: key, Value: "w", Effect: corev1.TaintEffectNoSchedule})
	}
	for _, taint := range node.Spec.Taints {
		if !strings.HasPrefix(taint.Key, w.key) {
			list = append(list, taint)
		}
	}
	node.Spec.Taints = list
	node.Annotations[w.key] = strconv.Itoa(w.n)
	w.mark = "annotation " + w.key
	_, err := w.s.Cluster.Kube.CoreV1().Nodes().Update(w.s.Ctx, node, metav1.UpdateOptions{})
	return err
}

// Patch sends a JSON patch that adds a taint behind all others, or takes its oldest off.
func (w *Writer) Patch(node *corev1.Node, taints []string) error {
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value,omitempty"`
	}
	ops := []op{{"add", "/metadata/labels/" + w.key, strconv.Itoa(w.n)}}
	w.mark = "label " + w.key
	if len(taints) > len(w.taints) {
		ops = append(ops, op{"add", "/spec/taints/-",
			corev1.Taint{Key: taints[len(taints)-1], Value: "w", Effect: corev1.TaintEffectNoSchedule}})
	} else {
		oldest := w.taints[0]
		path := "/spec/taints/" + strconv.Itoa(slices.IndexFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == oldest }))
		ops = append(ops, op{"test", path + "/key", oldest}, op{Op: "remove", Path: path})
	}
	body, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	_, err = w.s.Cluster.Kube.CoreV1().Nodes().Patch(w.s.Ctx, w.node, types.JSONPatchType, body, metav1.PatchOptions{})
	return err
}

// AwaitAnother waits until it has written once more.
func (w *Writer) AwaitAnother(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.change.Broadcast)
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := w.n; w.n == n && !w.over && ctx.Err() == nil; {
		w.change.Wait()
	}
}

// Wants adds what is its own to what must be on the node when all is over.
func (w *Writer) Wants(wanted map[string]string) {
	for _, taint := range w.taints {
		wanted["taint "+taint+" NoSchedule"] = "w"
	}
	if w.n > 0 {
		wanted[w.mark] = strconv.Itoa(w.n - 1)
	}
}

// Lost names what was not on the node as the writer had left it, once it has ended.
func (w *Writer) Lost() []string { return w.lost }

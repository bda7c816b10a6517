package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/report"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Reasons of Events about nodes: those of the agent.
const (
	reasonVerified    = "NodeVerified"
	reasonNotVerified = "NodeNotVerified"
)

// patchAttempts is the time limit of all attempts of one patch together, in timeouts of one request.
const patchAttempts = 10

// annotation is the value of the node's annotation, with the fields that the agent writes.
type annotation struct {
	Time     string         `json:"time"`               // RFC 3339
	Duration string         `json:"duration"`           // since the worker was created, as time.ParseDuration reads it
	Attempts map[string]int `json:"attempts,omitempty"` // where the worker has ended: a running one cannot say them
	Removed  []string       `json:"removed"`            // taints, as kubectl taint writes them
	Version  string         `json:"version"`            // of the controller
	Worker   types.UID      `json:"worker,omitempty"`   // whose verdict counted: it never counts again
}

// annotation reads that of node, empty where there is none or somebody else has written it.
func (s Settings) annotation(node *corev1.Node) (found annotation) {
	if err := json.Unmarshal([]byte(node.Annotations[s.Fleet.Request.Annotation]), &found); err != nil {
		return annotation{}
	}
	return found
}

// release releases node by the verdict of a worker, which was created at since.
func (r *Reconciler) release(ctx context.Context, node *corev1.Node, worker *corev1.Pod, since time.Time) error {
	_, said := fleet.WorkerOutcome(worker)
	request := r.Fleet.Request
	took := time.Since(since).Round(time.Millisecond)
	request.AnnotationValue = func(removed []nodepatch.Taint) string {
		text, _ := json.Marshal(annotation{ // of strings and numbers: it cannot fail
			Time: time.Now().UTC().Format(time.RFC3339), Duration: took.String(), Attempts: said.Attempts,
			Removed: format(removed), Version: r.Version, Worker: worker.UID,
		})
		return string(text)
	}
	log := r.Log.With("node", node.Name, "worker", worker.Name)
	released, removed, err := r.patcher(node.Name).ReleaseCached(ctx, report.PatchNode(node), request)
	switch {
	case errors.Is(err, nodepatch.ErrBlocked), errors.Is(err, nodepatch.ErrReplaced), errors.Is(err, nodepatch.ErrOutdated):
		log.Info("the verdict does not count: the checks start over", "reason", err)
		r.rememberWorker(node.Name, worker.Name, func(s *sight) { s.void = true })
		return nil
	case err != nil:
		if ctx.Err() == nil {
			r.warn(node, worker, "all checks pass, and the release has failed: "+err.Error())
		}
		return fmt.Errorf("release of node %s: %w", node.Name, err)
	}
	r.remember(node.Name, func(m *memory) {
		m.released, m.releasedVersion, m.releasedAt = worker.UID, released.ResourceVersion, time.Now()
	})
	what := "no startup taint found"
	if len(removed) > 0 {
		what = "removed " + strings.Join(format(removed), ", ")
	}
	log.Info("node verified", "took", took.String(), "taints", what)
	r.Events.Eventf(node, worker, corev1.EventTypeNormal, reasonVerified, "Verify",
		"DNS, API, network and service discovery work; verified in %s; %s", took, what)
	return nil
}

// removeTaint removes a startup taint that was added again after the release.
func (r *Reconciler) removeTaint(ctx context.Context, node *corev1.Node) error {
	removed, err := r.patcher(node.Name).RemoveAgain(ctx, node.UID, r.Fleet.Request)
	if err != nil {
		return fmt.Errorf("node %s: removal of the startup taint that was added again: %w", node.Name, err)
	}
	if len(removed) > 0 {
		r.Log.Warn("startup taint was added again after the release: removed it", "node", node.Name,
			"taints", strings.Join(format(removed), ", "))
	}
	return nil
}

func (r *Reconciler) patcher(node string) *nodepatch.Patcher {
	return &nodepatch.Patcher{
		Node: r.Node(node), Timeout: r.Timeout, Deadline: patchAttempts * r.Timeout,
		Retried: func(err error) {
			r.Log.Warn("patch not applied, will retry with the current node", "node", node, "error", err)
		},
	}
}

func format(taints []nodepatch.Taint) []string {
	texts := make([]string, len(taints))
	for i, taint := range taints {
		texts[i] = taint.String()
	}
	return texts
}

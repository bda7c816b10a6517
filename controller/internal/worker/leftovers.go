package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// betweenSweeps is the time between two sweeps, and the timeout of one.
const betweenSweeps = 10 * time.Minute

// Leftovers deletes the workers of controller mode once the release is back in daemonset mode. Only the leader does, first at its
// start and then periodically, because an earlier leader may have created one since.
type Leftovers struct {
	Reader    client.Reader // live: the cache has the agents' pods
	Writer    client.Writer
	Namespace string
	Selector  labels.Selector // of the workers
	Log       *slog.Logger
}

// Start deletes workers until ctx ends.
func (l *Leftovers) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := l.sweep(ctx); err != nil && ctx.Err() == nil {
			l.Log.Warn("cannot delete all workers of controller mode, will retry", "error", err)
		}
	}, betweenSweeps)
	return nil
}

func (l *Leftovers) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, betweenSweeps)
	defer cancel()
	var pods corev1.PodList
	err := l.Reader.List(ctx, &pods, client.InNamespace(l.Namespace), client.MatchingLabelsSelector{Selector: l.Selector})
	if err != nil {
		return fmt.Errorf("workers in namespace %s: %w", l.Namespace, err)
	}
	for _, pod := range pods.Items {
		if !isWorker(&pod) || pod.DeletionTimestamp != nil {
			continue
		}
		if failure := client.IgnoreNotFound(l.Writer.Delete(ctx, &pod, client.Preconditions{UID: &pod.UID})); failure != nil {
			err = errors.Join(err, fmt.Errorf("worker %s: %w", pod.Name, failure))
			continue
		}
		l.Log.Info("deleted a worker of controller mode", "node", fleet.NodeOf(&pod), "worker", pod.Name)
	}
	return err
}

package loop

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/pages"
)

// events are those of a pod.
type events struct {
	list []corev1.Event // not nil: it was read
	of   string         // the pod's resourceVersion when it was read: it is read again once the pod has changed
}

// lookUp is the first step: it reads the Events of the pods that the plan asks for, of all of them at once. The API server keeps
// Events in no cache and no index: a list for each pod would read all Events of the namespace each time.
type lookUp struct{ *Loop }

func (l lookUp) Act(ctx context.Context, plan fleet.Plan) (requeueAfter time.Duration, err error) {
	wanted := l.wanted(plan)
	if len(wanted) == 0 {
		return 0, nil
	}
	now := l.Now()
	if since := now.Since(l.looked); !l.looked.IsZero() && since < betweenLookUps {
		return betweenLookUps - since, nil
	}
	l.looked = now.Mark()
	read := make(map[types.UID][]corev1.Event, len(wanted))
	for _, pod := range wanted {
		read[pod.UID] = []corev1.Event{}
	}
	ofPods := client.MatchingFields{"involvedObject.kind": "Pod"}
	for list, err := range pages.Of(ctx, l.Live, new(corev1.EventList), client.InNamespace(wanted[0].Namespace), ofPods) {
		if err != nil {
			return 0, fmt.Errorf("events of the agents' pods: %w", err)
		}
		for _, event := range list.Items {
			if of, isWanted := read[event.InvolvedObject.UID]; isWanted {
				read[event.InvolvedObject.UID] = append(of, corev1.Event{Reason: event.Reason, Message: event.Message,
					FirstTimestamp: event.FirstTimestamp, LastTimestamp: event.LastTimestamp, EventTime: event.EventTime})
			}
		}
	}
	for _, pod := range wanted {
		l.events[pod.UID] = events{read[pod.UID], pod.ResourceVersion}
	}
	return batch, nil
}

// wanted returns the pods whose Events are to be read: those that the plan asks for, and those that have changed since. It
// forgets the Events of pods that run or are gone. An old finding stands until a new one is there.
func (l lookUp) wanted(plan fleet.Plan) (wanted []*corev1.Pod) {
	kept := make(map[types.UID]events)
	for _, status := range plan.Statuses {
		mayWait := status.State == fleet.Pending || status.State == fleet.Failed || !status.Recheck.NoAgent.IsZero()
		if status.Pod == nil || !mayWait {
			continue
		}
		of, read := l.events[status.Pod.UID]
		if read {
			kept[status.Pod.UID] = of
		}
		if read && of.of != status.Pod.ResourceVersion || status.EventsWanted && !read {
			wanted = append(wanted, status.Pod)
		}
	}
	l.events = kept
	return wanted
}

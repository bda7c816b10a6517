package loop

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/pages"
)

// podEvents are the Events of a pod.
type podEvents struct {
	list       []corev1.Event // not nil: it was read
	podVersion string         // the pod's resourceVersion when it was read: it is read again once the pod has changed
}

// lookUp is the first step: it reads the Events of the pods that the plan asks for, of all of them at once. The API server keeps
// Events in no cache and no index: a list for each pod would read all Events of the namespace each time.
func (l *Loop) lookUp(ctx context.Context, plan fleet.Plan) (requeueAfter time.Duration, err error) {
	wanted := l.refresh(plan)
	if len(wanted) == 0 {
		l.unread = clock.Mark{}
		return 0, nil
	}
	now := l.Now()
	if since := now.Since(l.looked); since < betweenLookUps {
		return betweenLookUps - since, nil
	}
	l.looked = now.Mark()
	read := make(map[types.UID][]corev1.Event, len(wanted))
	for _, pod := range wanted {
		read[pod.UID] = []corev1.Event{}
	}
	ofPods := client.MatchingFields{"involvedObject.kind": "Pod"}
	for list, failure := range pages.Of(ctx, l.Live, new(corev1.EventList), client.InNamespace(wanted[0].Namespace), ofPods) {
		if failure != nil {
			err = fmt.Errorf("events of the agents' pods: %w", failure)
			break
		}
		for _, event := range list.Items {
			if known, isWanted := read[event.InvolvedObject.UID]; isWanted {
				read[event.InvolvedObject.UID] = append(known, corev1.Event{Reason: event.Reason, Message: event.Message,
					FirstTimestamp: event.FirstTimestamp, LastTimestamp: event.LastTimestamp, EventTime: event.EventTime})
			}
		}
	}
	l.keep(wanted, read, err, now)
	return batch, err
}

// keep keeps the Events that were read. Where not all could be read, these pods are looked up again. An old finding stands
// then, and the pods without any count as read once that has lasted: their nodes fail in time, too.
func (l *Loop) keep(wanted []*corev1.Pod, read map[types.UID][]corev1.Event, err error, now clock.Now) {
	if err == nil {
		l.unread = clock.Mark{}
	} else {
		l.unread = cmp.Or(l.unread, now.Mark())
	}
	hasLasted := now.HasLasted(l.unread, unreadFor)
	for _, pod := range wanted {
		known, isKnown := l.events[pod.UID]
		switch found := read[pod.UID]; {
		case err == nil:
			l.events[pod.UID] = podEvents{found, pod.ResourceVersion}
		case len(found) > len(known.list), !isKnown && hasLasted:
			l.events[pod.UID] = podEvents{list: found}
		}
	}
}

// refresh forgets the Events of pods that run or are gone, and returns the pods whose Events are to be read: those that the plan
// asks for, and those that have changed since. An old finding stands until a new one is there.
func (l *Loop) refresh(plan fleet.Plan) (wanted []*corev1.Pod) {
	kept := make(map[types.UID]podEvents)
	for _, status := range plan.Statuses {
		mayWait := status.State == fleet.Pending || status.State == fleet.Failed || status.Absence.Is
		if status.Pod == nil || !mayWait {
			continue
		}
		known, isRead := l.events[status.Pod.UID]
		if isRead {
			kept[status.Pod.UID] = known
		}
		if isRead && known.podVersion != status.Pod.ResourceVersion || status.EventsWanted && !isRead {
			wanted = append(wanted, status.Pod)
		}
	}
	l.events = kept
	return wanted
}

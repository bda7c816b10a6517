package worker

import (
	"hash/crc32"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

const (
	// betweenRounds is the shortest time from the start of a worker that fails to its successor.
	betweenRounds = 10 * time.Second
	// firstRetry is the wait after a failed round once INITIAL_TIMEOUT has passed, and always after a crash. Later waits are as long
	// as the node has failed since, up to longestRetry, and firstRetry again for nodes that failed before a third attempt of any
	// node, or a later one, has passed.
	firstRetry   = 30 * time.Second
	longestRetry = 8 * time.Minute
	// afterInterruption is the wait after a worker that kubelet has refused or evicted: it proves nothing about the node's network.
	// After several in a row it is twice as long each time, up to longestInterruption.
	afterInterruption   = 10 * time.Second
	longestInterruption = 5 * time.Minute
	// firstRelease and longestRelease are the waits after a release that failed.
	firstRelease   = 100 * time.Millisecond
	longestRelease = 30 * time.Second
	// firstRemoval and longestRemoval are the waits after the removal of a startup taint that is put back.
	firstRemoval   = 2 * time.Second
	longestRemoval = 5 * time.Minute
)

// pause is the time from the end of a worker that did not release its node to its successor.
func (s Settings) pause(pod *corev1.Pod, v view) time.Duration {
	state, failing := v.memory.workers[pod.Name], fleet.FailingFor(pod)
	switch outcome := state.outcome(pod); {
	case outcome == fleet.Interrupted:
		return min(afterInterruption<<max(0, min(v.memory.interrupted-1, 5)), longestInterruption)
	case outcome != fleet.FailedRound: // it proves nothing about the network, which may work soon
		return v.retryPause(pod, failing)
	case failing < s.Fleet.FailedAfter:
		return betweenRounds - state.ended.Sub(state.first)
	}
	return v.retryPause(pod, failing-s.Fleet.FailedAfter)
}

// retryPause is the time to the successor of a worker whose node has failed for so long.
func (v view) retryPause(pod *corev1.Pod, failing time.Duration) time.Duration {
	switch {
	case v.memory.workers[pod.Name].first.Before(v.healed):
		return firstRetry
	case failing >= longestRetry: // nodes that failed together retry at different times: the first one that passes ends all pauses
		return longestRetry - longestRetry*3/4/256*time.Duration(crc32.ChecksumIEEE([]byte(pod.Name))%256)
	}
	return max(failing, firstRetry)
}

// tries are the patches of a node that did not help: the release failed, or the startup taint was put back.
type tries struct {
	inARow int
	last   clock.Mark
}

// pauseLeft returns how long to wait for the next try. Each one that did not help doubles the pause.
func (t tries) pauseLeft(first, longest time.Duration, now clock.Now) time.Duration {
	return min(first*(1<<min(t.inARow, 10)-1), longest) - now.Since(t.last)
}

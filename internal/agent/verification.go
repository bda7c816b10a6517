package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// betweenRounds is the pause after a round that has passed, if SUCCESS_THRESHOLD wants another one.
	betweenRounds = time.Second
	// unregistered is Karpenter's taint. Karpenter puts startup taints back until it has registered the node.
	unregistered = "karpenter.sh/unregistered"
)

// errRestart means that the results of the checks do not count any more.
var errRestart = errors.New("the checks start over")

// verification is the way of one node to its release. One goroutine owns it; a step runs beside that goroutine and owns
// the node while it runs.
type verification struct {
	*Agent
	start       time.Time
	request     nodepatch.Request
	node        *nodepatch.Node // as last read, nil before
	readAt      time.Time       // when; zero: from the API server's cache, too old to build a patch on
	recentRead  *recentRead
	foreignSeen bool

	attempted   chan checks.Attempt
	attempts    map[string]int // of each check
	lastFailure *failure
	reported    map[string]repeat

	timeout       <-chan time.Time // INITIAL_TIMEOUT; nil once it has passed
	stop          context.CancelFunc
	marker        marker
	releasing     bool // a patch is in flight that releases the node
	releaseFailed bool
	retract       bool // the marker has shown the node as verified, and the release has failed
}

// recentRead is a read of the Node that the next api check reuses: it is the request that the check would send. It
// saves one of five requests on every new node.
type recentRead struct {
	at       time.Time
	took     time.Duration
	warnings []string
}

func (a *Agent) newVerification() *verification {
	v := &verification{Agent: a, request: newRequest(a.cfg), attempted: make(chan checks.Attempt, 16),
		attempts: make(map[string]int), reported: make(map[string]repeat)}
	v.request.AnnotationValue = v.annotationValue
	v.marker = newMarker(a, v.request)
	return v
}

// isVerified reads the node before anything else: a container that was restarted on a verified node has nothing to do.
func (v *verification) isVerified(ctx context.Context) bool {
	start := time.Now()
	readCtx, cancel := context.WithTimeout(ctx, v.cfg.CheckTimeout)
	defer cancel()
	node, warnings, err := getPadded(readCtx, v.api)
	if err != nil {
		if ctx.Err() == nil {
			v.log.WithError(err).Info("cannot read the node yet: starting with the checks")
		}
		return false
	}
	v.node, v.readAt = node, time.Now()
	v.recentRead = &recentRead{at: v.readAt, took: v.readAt.Sub(start), warnings: warnings}
	return nodepatch.IsVerified(node, v.request)
}

// verify runs rounds until enough of them have passed in a row and the node is released. It returns
// false if ctx is cancelled or --once times out.
func (v *verification) verify(parentCtx context.Context) bool {
	v.start = time.Now()
	timer := time.NewTimer(v.cfg.InitialTimeout)
	defer timer.Stop()
	v.timeout = timer.C
	defer v.metrics.TimedOut(false)
	var ctx context.Context
	ctx, v.stop = context.WithCancel(parentCtx)
	defer v.stop()

	pauses := checks.Exponential()
	for passed := 0; ; {
		err := v.waitForForeignTaints(ctx)
		if err == nil {
			err = v.runChecks(ctx)
		}
		last := passed+1 >= v.cfg.SuccessThreshold
		if err == nil && last {
			err = v.waitForStartupTaint(ctx)
		}
		if err == nil {
			err = v.lookForForeignTaint(ctx, last)
		}
		if err == nil && !last {
			passed++
			v.log.WithFields(logrus.Fields{"passed": passed, "threshold": v.cfg.SuccessThreshold}).Info("round passed")
			pauses.Reset()
			v.pause(ctx, betweenRounds)
			continue
		}
		if err == nil {
			err = v.release(ctx)
		}
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		}
		passed = 0
		if !errors.Is(err, errRestart) {
			pause := pauses.NextBackOff()
			v.reportFailure(ctx, err, pause)
			v.pause(ctx, pause)
		}
	}
}

// await runs a step and meanwhile records the attempts of its checks and the end of INITIAL_TIMEOUT.
func (v *verification) await(ctx context.Context, step func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- step(ctx) }()
	for {
		select {
		case attempt := <-v.attempted:
			v.record(attempt)
		case <-v.timeout:
			v.timeout = nil
			v.reportTimeout(ctx)
		case err := <-done:
			for {
				select {
				case attempt := <-v.attempted:
					v.record(attempt)
				default:
					return err
				}
			}
		}
	}
}

func (v *verification) pause(ctx context.Context, d time.Duration) {
	_ = v.await(ctx, func(ctx context.Context) error {
		sleep(ctx, d)
		return nil
	})
}

// waitForForeignTaints waits until no foreign taint of WAIT_FOR_TAINTS is left: results before the CNI is up, for
// example, are meaningless. If the node cannot be read, the checks start and say why.
func (v *verification) waitForForeignTaints(ctx context.Context) error {
	taint := v.foreignTaint(v.node)
	if taint == nil {
		return ctx.Err()
	}
	v.foreignSeen = true
	v.log.WithField("taint", taint.String()).Info("waiting for foreign taints")
	v.lastFailure = &failure{foreignTaints, fmt.Errorf("%s is still on (WAIT_FOR_TAINTS)", taint)}
	err := v.waitForNode(ctx, time.Time{}, func(node *nodepatch.Node) bool { return v.foreignTaint(node) == nil })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		v.log.WithError(err).Debug("cannot read the node while waiting for foreign taints: starting the checks")
		v.node = nil
		return nil
	}
	v.lastFailure = nil
	v.log.Info("foreign taints removed")
	return nil
}

// foreignTaint returns a taint of node that must be gone before the checks start, or nil. A prefix may cover the
// agent's own taints too, which nobody else removes.
func (v *verification) foreignTaint(node *nodepatch.Node) *nodepatch.Taint {
	if node == nil {
		return nil
	}
	i := slices.IndexFunc(node.Spec.Taints, func(taint nodepatch.Taint) bool {
		return !v.request.Removes(taint) && (taint.Key == unregistered ||
			slices.ContainsFunc(v.cfg.WaitForTaints, func(prefix string) bool { return strings.HasPrefix(taint.Key, prefix) }))
	})
	if i < 0 {
		return nil
	}
	return &node.Spec.Taints[i]
}

func (v *verification) runChecks(ctx context.Context) error {
	var results []checks.Result
	runner := newRunner(v.cfg, v)
	err := v.await(ctx, func(ctx context.Context) (err error) {
		results, err = runner.Round(ctx, v.checks(checks.API{Get: v.readNode}))
		return err
	})
	if err != nil {
		return err
	}
	return v.judge(results)
}

// readNode is the request of the api check. The patch is built on the answer.
func (v *verification) readNode(ctx context.Context) (checks.Report, error) {
	report := checks.Report{Detail: "node " + v.cfg.NodeName + " read"}
	if recent := v.recentRead; recent != nil {
		v.recentRead = nil
		if time.Since(recent.at) < v.cfg.CheckTimeout {
			report.Took, report.Warnings = recent.took, recent.warnings
			return report, nil
		}
	}
	v.client.CloseIdleConnections()
	node, warnings, err := getPadded(ctx, v.api)
	if err != nil {
		return report, err
	}
	report.Warnings = warnings
	v.node, v.readAt = node, time.Now()
	return report, nil
}

// getPadded reads the node with a request that proves the MTU of the path.
func getPadded(ctx context.Context, api nodepatch.Client) (node *nodepatch.Node, warnings []string, err error) {
	warnings, err = checks.WithLargeHeader(func(padding string) (err error) {
		node, err = api.GetWithPadding(ctx, padding)
		return err
	})
	return node, warnings, err
}

// waitForStartupTaint waits for a startup taint that is added late.
func (v *verification) waitForStartupTaint(ctx context.Context) error {
	there := func(node *nodepatch.Node) bool {
		_, released := node.Annotations[annotation]
		return released || len(nodepatch.StartupTaints(node, v.request)) > 0
	}
	due := nodepatch.StartupTaintDue(v.node, v.request, v.cfg.LateTaintWindow, v.client.ServerTime())
	if there(v.node) || !time.Now().Before(due) {
		return nil
	}
	v.log.WithField("window", v.cfg.LateTaintWindow.String()).Debug("waiting for the startup taint")
	v.lastFailure = &failure{startupTaint, fmt.Errorf("all checks pass, and the node is not yet %s old (LATE_TAINT_WINDOW)", v.cfg.LateTaintWindow)}
	err := v.waitForNode(ctx, due, there)
	v.lastFailure = nil
	if err != nil && ctx.Err() == nil {
		v.log.WithError(err).Warn("cannot read the node while waiting for the startup taint: restarting the checks")
		return errRestart
	}
	return err
}

// waitForNode waits until done reports true of the node, or until has passed.
func (v *verification) waitForNode(ctx context.Context, until time.Time, done func(*nodepatch.Node) bool) error {
	return v.await(ctx, func(ctx context.Context) error {
		node, err := v.patcher.Wait(ctx, v.node, until, done)
		if err == nil {
			v.node, v.readAt = node, time.Time{}
		}
		return err
	})
}

// lookForForeignTaint fails with errRestart if the node has got a foreign taint since the checks started. Before the
// release it reads the node again if that may have been missed, or if the patch would be built on an old read.
func (v *verification) lookForForeignTaint(ctx context.Context, beforeRelease bool) error {
	if beforeRelease && (v.foreignSeen || time.Since(v.readAt) > v.cfg.CheckTimeout) {
		err := v.await(ctx, func(ctx context.Context) error {
			node, err := v.patcher.Get(ctx)
			if err == nil {
				v.node, v.readAt = node, time.Now()
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("cannot read the node before its release: %w", err)
		}
	}
	if taint := v.foreignTaint(v.node); taint != nil {
		v.log.WithField("taint", taint.String()).Info("foreign taint added: restarting the checks")
		return errRestart
	}
	return nil
}

// release removes the startup taint and adds the label. The marker shows the node as verified before that: a stale
// False could get a healthy node replaced. After a release that has failed it does so afterwards, because a condition
// that turns True and False again each round would never be False for long.
func (v *verification) release(ctx context.Context) (err error) {
	for _, taint := range nodepatch.StartupTaints(v.node, v.request) {
		if taint.Effect != v.cfg.TaintEffect {
			v.log.WithFields(logrus.Fields{"taint": taint.String(), "expected": v.cfg.TaintEffect}).
				Warn("startup taint has an unexpected effect: removing it anyway")
		}
	}
	if !v.releaseFailed {
		if v.retract, err = v.marker.Verified(ctx, v.node); err != nil {
			return err
		}
	}
	var removed []nodepatch.Taint
	v.releasing = true // never mark a released node
	err = v.await(ctx, func(ctx context.Context) (err error) {
		removed, err = v.patcher.Release(ctx, v.node, v.request)
		return err
	})
	v.releasing = false
	if err != nil {
		v.releaseFailed = true
		return err
	}
	v.verdict = &verdict{v.node, v.request}
	v.announce(ctx, removed)
	return nil
}

// announce reports the released node. The DaemonSet controller deletes this pod as soon as it sees the label, so the
// Event and the condition are finished first, whether ctx has ended or not.
func (v *verification) announce(ctx context.Context, removed []nodepatch.Taint) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.cfg.CheckTimeout+2*time.Second)
	defer cancel()
	took := time.Since(v.start)
	v.metrics.Verified(time.Now(), took)
	what := "no startup taint found"
	if len(removed) > 0 {
		what = "removed " + join(removed)
	}
	log := v.log.WithFields(logrus.Fields{"took": formatDuration(took), "taints": what})
	if left := v.remaining(); len(left) > 0 {
		log = log.WithField("remaining_taints", join(left))
	}
	log.Info("node verified")
	v.events.Add(kube.EventNormal, reasonVerified,
		"DNS, API, network and service discovery work; verified in "+formatDuration(took)+"; "+what)
	retry(ctx, func() bool { return v.events.Flush(ctx) })
	if v.releaseFailed {
		retry(ctx, func() bool {
			_, err := v.marker.Verified(ctx, nil)
			if err != nil {
				v.log.WithError(err).Warn("node released, but its condition cannot be written")
			}
			return err == nil
		})
	}
}

// remaining returns the taints that still repel pods after the release.
func (v *verification) remaining() []nodepatch.Taint {
	return slices.DeleteFunc(slices.Clone(v.node.Spec.Taints), func(taint nodepatch.Taint) bool {
		return v.request.Removes(taint) || (taint.Effect != "NoSchedule" && taint.Effect != "NoExecute")
	})
}

func join(taints []nodepatch.Taint) string {
	texts := make([]string, len(taints))
	for i, taint := range taints {
		texts[i] = taint.String()
	}
	return strings.Join(texts, ", ")
}

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// betweenRounds is the pause after a round that has passed, if SUCCESS_THRESHOLD wants another one.
const betweenRounds = time.Second

// errRestart starts the rounds over at once, without a report: the results of the checks do not count any more.
var errRestart = errors.New("the checks start over")

// verification is the way of one node to its release. One goroutine owns it; a step runs beside that goroutine and owns
// the node while it runs.
type verification struct {
	*Agent
	start   time.Time
	request nodepatch.Request
	node    *nodepatch.Node // as last read, nil before
	readAt  time.Time       // when; zero for a read from the API server's cache, on which no patch is built
	// reusable is the report of a read just before the checks. The api check would send the same request, and reuses it:
	// that saves one of five requests on every new node. nil once it is used.
	reusable    *checks.Report
	foreignSeen bool
	startupDue  time.Time // until when a late startup taint may be added; zero before it is known

	attempted   chan checks.Attempt
	attempts    map[string]int // of each check
	lastFailure *failure
	reported    map[string]repeat

	timeout       <-chan time.Time // INITIAL_TIMEOUT, and then the next attempt to report that it has passed
	timedOut      bool
	stop          context.CancelFunc
	marker        marker
	releasing     bool // a patch is in flight that releases the node
	released      bool
	releaseFailed bool
	shownVerified bool // by the marker, before a release that has failed: to be taken back
}

func (a *Agent) newVerification() *verification {
	v := &verification{Agent: a, request: NewRequest(a.cfg), attempted: make(chan checks.Attempt, 16),
		attempts: make(map[string]int), reported: make(map[string]repeat)}
	v.request.Blocks = v.request.WaitsFor(a.cfg.WaitForTaints)
	v.marker = marker{v: v}
	return v
}

// readFirst reads the node before anything else and reports whether it is verified: a container that was restarted on
// a verified node has nothing to do.
func (v *verification) readFirst(ctx context.Context) bool {
	readCtx, cancel := context.WithTimeout(ctx, v.cfg.CheckTimeout)
	defer cancel()
	start := time.Now()
	report, err := v.readLarge(readCtx)
	if err != nil {
		if ctx.Err() == nil {
			v.log.WithError(err).Info("cannot read the node yet: starting with the checks")
		}
		return false
	}
	report.Took = v.readAt.Sub(start)
	v.reusable = &report
	return nodepatch.IsVerified(v.node, v.heldRequest())
}

// verify runs rounds until enough of them have passed in a row and the node is released; then Run holds. It returns
// false if ctx is cancelled or --once times out. What it reports, failures above all, is in report.go.
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
		beforeRelease := passed+1 >= v.cfg.SuccessThreshold
		err := v.round(ctx, beforeRelease)
		if v.isRechecked() {
			v.log.Info("node is already verified")
			return true
		}
		if err == nil && beforeRelease {
			err = v.release(ctx)
		}
		switch {
		case err == nil && beforeRelease:
			return true
		case ctx.Err() != nil:
			return false
		case err == nil:
			passed++
			v.log.WithFields(logrus.Fields{"passed": passed, "threshold": v.cfg.SuccessThreshold}).Info("round passed")
			pauses.Reset()
			v.pause(ctx, betweenRounds)
		case errors.Is(err, errRestart):
			passed = 0
		default:
			passed = 0
			pause := pauses.NextBackOff()
			v.reportFailure(ctx, err, pause)
			v.pause(ctx, pause)
		}
	}
}

// round runs the checks once on a node without foreign taints. Before the release it also waits for a late startup taint.
func (v *verification) round(ctx context.Context, beforeRelease bool) error {
	if err := v.waitForForeignTaints(ctx); err != nil {
		return err
	}
	before := v.node
	if err := v.runChecks(ctx); err != nil {
		return err
	}
	if beforeRelease {
		if err := v.waitForStartupTaint(ctx); err != nil {
			return err
		}
	}
	if err := v.lookForForeignTaint(ctx, beforeRelease); err != nil {
		return err
	}
	if before != nil && before.UID != v.node.UID {
		v.log.Warn("node was deleted and created again: restarting the checks")
		v.marker, v.proof = marker{v: v}, nil
		return errRestart
	}
	return nil
}

// await runs a step, and records the attempts of its checks and the end of INITIAL_TIMEOUT.
func (v *verification) await(ctx context.Context, step func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- step(ctx) }()
	for {
		select {
		case attempt := <-v.attempted:
			v.record(attempt)
		case <-v.timeout:
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

// readNode is the request of the api check.
func (v *verification) readNode(ctx context.Context) (checks.Report, error) {
	if report := v.reusable; report != nil {
		v.reusable = nil
		if time.Since(v.readAt) < v.cfg.CheckTimeout {
			return *report, nil
		}
	}
	v.client.CloseIdleConnections()
	return v.readLarge(ctx)
}

// readLarge reads the node with a request that is larger than a packet. The patch is built on the answer.
func (v *verification) readLarge(ctx context.Context) (checks.Report, error) {
	node, report, err := readLarge(ctx, v.cfg.NodeName, v.api.GetPadded)
	if err == nil {
		v.node, v.readAt = node, time.Now()
	}
	return report, err
}

func readLarge(ctx context.Context, name string, get func(ctx context.Context, padding string) (*nodepatch.Node, error)) (
	node *nodepatch.Node, report checks.Report, err error) {
	report.Detail = "node " + name + " read"
	report.Warnings, err = checks.WithLargeHeader(func(value string) (err error) {
		node, err = get(ctx, value)
		return err
	})
	return node, report, err
}

// release removes the startup taint and adds the label. If the node shows a failure that would stay, the marker takes
// that back first: a stale False could get a healthy node replaced. Once a release has failed, the marker waits for the
// next one to succeed: a condition that is True for a moment in each round would hide the failure.
func (v *verification) release(ctx context.Context) error {
	for _, taint := range nodepatch.StartupTaints(v.node, v.request) {
		if taint.Effect != v.cfg.TaintEffect {
			v.log.WithFields(logrus.Fields{"taint": taint.String(), "expected": v.cfg.TaintEffect}).
				Warn("startup taint has an unexpected effect: removing it anyway")
		}
	}
	if !v.releaseFailed && v.marker.ShowsFailed(v.node) {
		v.shownVerified = v.markVerified(ctx)
	}
	v.request.AnnotationValue = v.annotationValue(time.Now())
	v.proof = &proof{v.node, v.request}
	var removed []nodepatch.Taint
	v.releasing = true // no marker while it is in flight: never mark a released node
	err := v.await(ctx, func(ctx context.Context) (err error) {
		removed, err = v.patcher.Release(ctx, v.node, v.request)
		return err
	})
	v.releasing = false
	switch {
	case errors.Is(err, nodepatch.ErrBlocked), errors.Is(err, nodepatch.ErrReplaced):
		v.log.WithError(err).Info("restarting the checks")
		v.foreignSeen = true // the next release starts from a fresh read
		v.node, v.proof = nil, nil
		return errRestart
	case err != nil:
		v.releaseFailed = true
		return err
	}
	v.released = true
	v.announce(ctx, removed)
	return nil
}

// isRechecked reports whether rechecks, and not a release, are to decide about the node: it is verified, and only its first read
// has failed. A release would open a node that the controller has closed after a single round.
func (v *verification) isRechecked() bool {
	return v.cfg.RecheckInterval > 0 && v.node != nil && nodepatch.IsVerified(v.node, v.heldRequest())
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/metrics"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	// annotation says how the node was verified, in compact JSON, and outlives the pod.
	annotation = "node-ready/verification"
	// holdLook is how often a verified node is looked at until the pod is evicted.
	holdLook = time.Minute
	// betweenPasses is the pause between rounds that pass, with a threshold of several.
	betweenPasses = time.Second
	// patchName stands where a check's name would in what is said of a patch that fails.
	patchName = "patch"
	// patchTries is how many request time limits all tries of the patch may take together.
	patchTries = 10
)

// agent verifies one node, and holds until it is told to stop.
type agent struct {
	cfg     config
	log     *logrus.Entry
	metrics *metrics.Recorder
	api     *api
	node    nodepatch.Client
	patcher *nodepatch.Patcher
	events  *events
	runner  checks.Runner
	checks  []checks.Check

	base     *nodepatch.Node                // as it was read last
	look     *look                          // at the node, before the checks; nil once it is used up
	attempts map[string]int                 // of each check, in this verification
	trouble  atomic.Pointer[checks.Attempt] // the last that failed, for the report of a timeout
	mark     mark                           // on a node that was not verified in time
}

// look is an answer of the API that the api check may take for its own: the very call that it
// would make has just been made. It saves one of five requests on every new node.
type look struct {
	at   time.Time
	took time.Duration
}

func newAgent(cfg config, p place, recorder *metrics.Recorder, log *logrus.Entry) *agent {
	a := &agent{cfg: cfg, log: log, metrics: recorder, api: p.api}
	a.node = nodepatch.Client{REST: p.api.core, Name: cfg.nodeName}
	a.events = newEvents(p.api.core, cfg, log)
	a.patcher = &nodepatch.Patcher{
		Node:     a.node,
		Timeout:  cfg.checkTimeout,
		Deadline: patchTries * cfg.checkTimeout,
		Retried: func(err error) {
			recorder.PatchRetry()
			log.WithError(err).Warn("patch not applied: building it again for the node as it is now")
		},
	}
	a.runner = newRunner(cfg, a)
	a.checks = newChecks(cfg, p, checks.API{Get: a.readNode})
	return a
}

func newRunner(cfg config, observer checks.Observer) checks.Runner {
	runner := checks.Runner{Timeout: cfg.checkTimeout, MaxRetries: cfg.maxRetries, NewBackOff: checks.Exponential, Observer: observer}
	if cfg.retryBackoff == "linear" {
		runner.NewBackOff = checks.Linear
	}
	return runner
}

// request is what the node is to look like, but for the value of the annotation.
func (c config) request() nodepatch.Request {
	r := nodepatch.Request{TaintKey: c.taintKey, Label: c.verifiedLabel, LabelValue: c.verifiedLabelValue, Annotation: annotation}
	if c.onTimeout == onTimeoutTaint {
		r.FailedTaintKey = c.failedTaintKey
	}
	return r
}

// run verifies the node and holds, and verifies again when the node is found unverified meanwhile,
// until ctx ends. With --once it returns with the verdict. It tells whether the node is verified.
func (a *agent) run(ctx context.Context) bool {
	for {
		if a.isOpen(ctx) {
			a.log.Info("node is verified already")
			a.metrics.SetStatus(true)
		} else if !a.verify(ctx) {
			return false
		}
		if a.cfg.once || !a.hold(ctx) {
			return true
		}
		a.metrics.SetStatus(false)
	}
}

// isOpen looks at the node before anything else is done: a container that was started again on a
// verified node has nothing to do.
func (a *agent) isOpen(ctx context.Context) bool {
	if err := a.lookAtNode(ctx); err != nil {
		if ctx.Err() == nil {
			a.log.WithError(err).Info("node cannot be read yet: starting with the checks")
		}
		return false
	}
	return nodepatch.Open(a.base, a.cfg.request())
}

// lookAtNode reads the node outside the checks. The next api check may use the answer.
func (a *agent) lookAtNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.checkTimeout)
	defer cancel()
	start := time.Now()
	node, err := a.node.Get(ctx)
	if err == nil {
		a.base, a.look = node, &look{at: time.Now(), took: time.Since(start)}
	}
	return err
}

// readNode is the question of the api check. The answer is what the patch is built on.
func (a *agent) readNode(ctx context.Context) (string, time.Duration, error) {
	detail := "node " + a.cfg.nodeName + " read"
	if look := a.look; look != nil {
		a.look = nil
		if time.Since(look.at) < a.cfg.checkTimeout {
			return detail, look.took, nil
		}
	}
	a.api.closeIdle()
	node, err := a.node.Get(ctx)
	if err != nil {
		return "", 0, err
	}
	a.base = node
	return detail, 0, nil
}

// verify runs rounds until enough of them have passed in a row and the node is patched. False means
// that it was told to stop, or with --once that the time is over.
func (a *agent) verify(ctx context.Context) bool {
	start := time.Now()
	a.attempts = make(map[string]int)
	a.trouble.Store(nil)
	a.events.startOver(start)
	a.mark.startOver()
	told := ctx // ends when the agent is told to stop, and not by giving up
	ctx, giveUp := context.WithCancel(told)
	defer giveUp()
	stopWatch := a.watchTimeout(told, giveUp)
	defer func() {
		stopWatch()
		a.metrics.TimedOut(false)
	}()

	pauses := checks.Exponential()
	for passed := 0; ; {
		if !a.awaitOthers(ctx) {
			return false
		}
		results, err := a.runner.Round(ctx, a.checks)
		if err != nil {
			return false
		}
		err = a.judge(results)
		if err == nil && passed+1 >= a.cfg.successThreshold {
			err = a.awaitTaint(ctx)
		}
		if err == nil {
			if taint := a.taintOfOthers(); taint != nil {
				a.log.WithField("taint", taint.String()).Info("a taint of WAIT_FOR_TAINTS has come meanwhile: what has passed does not count")
				passed = 0
				continue
			}
			if passed++; passed < a.cfg.successThreshold {
				a.log.WithFields(logrus.Fields{"passed": passed, "threshold": a.cfg.successThreshold}).Info("round passed")
				pauses.Reset()
				sleep(ctx, betweenPasses)
				continue
			}
			if err = a.open(ctx, start); err == nil {
				stopWatch() // the node is open in time, however long it takes to say so
				a.announce(ctx, start)
				return true
			}
		}
		if _, checked := errors.AsType[notVerified](err); !checked {
			a.trouble.Store(&checks.Attempt{Check: patchName, Err: err})
		}
		if ctx.Err() != nil {
			return false
		}
		passed = 0
		wait := pauses.NextBackOff()
		a.log.WithFields(logrus.Fields{"reason": brief(err), "next_round_in": seconds(wait)}).Error("node not verified")
		a.events.failing(err)
		a.events.flush(ctx)
		a.markAgain(ctx, err)
		sleep(ctx, wait)
	}
}

// open takes the taint off and puts the label on.
func (a *agent) open(ctx context.Context, start time.Time) (err error) {
	request := a.cfg.request()
	for _, taint := range nodepatch.Taints(a.base, request) {
		if taint.Effect != a.cfg.taintEffect {
			a.log.WithFields(logrus.Fields{"taint": taint.String(), "expected": a.cfg.taintEffect}).
				Warn("taint has another effect than TAINT_EFFECT: taking it off all the same")
		}
	}
	if request.AnnotationValue, err = a.verification(time.Since(start)); err != nil {
		return err
	}
	return a.unmark(ctx, request)
}

// announce says that the node is open.
func (a *agent) announce(ctx context.Context, start time.Time) {
	took := time.Since(start)
	a.metrics.Verified(time.Now(), took)
	a.log.WithField("took", seconds(took)).Info("node verified: taint off, label on")
	a.events.add(eventNormal, reasonVerified, "DNS, API, network and service discovery work; verified in "+seconds(took))
	// The DaemonSet controller deletes this pod as soon as it sees the label: the Event is finished first.
	insist(func() bool { return a.events.flush(context.WithoutCancel(ctx)) })
}

// verification is the value of the annotation.
func (a *agent) verification(took time.Duration) (string, error) {
	text, err := json.Marshal(struct {
		Time     string         `json:"time"`     // RFC 3339
		Duration string         `json:"duration"` // as time.ParseDuration reads it
		Attempts map[string]int `json:"attempts"`
		Version  string         `json:"version"`
	}{time.Now().UTC().Format(time.RFC3339), seconds(took), a.attempts, version})
	return string(text), err
}

// hold looks at the node once in a while until ctx ends, and returns true when it is found
// unverified: the label taken off before the pod was evicted, or the taint put back.
func (a *agent) hold(ctx context.Context) bool {
	// From here on there are only scrapes, whose garbage need not grow to the 4 MB at which Go begins
	// to collect: 2 MiB less after ten thousand.
	debug.SetGCPercent(50)
	for sleep(ctx, holdLook) {
		limited, cancel := context.WithTimeout(ctx, a.cfg.checkTimeout)
		node, err := a.node.Get(limited)
		cancel()
		switch {
		case err != nil:
			a.log.WithError(err).Debug("node cannot be read while holding")
		case !nodepatch.Open(node, a.cfg.request()):
			a.log.Info("node is not verified any more: label off or taint on")
			return true
		}
	}
	return false
}

// insist calls f a few times, a second apart, until it says that it is done: what follows the patch has no next round, and the pod that
// does it is about to be deleted.
func insist(f func() bool) {
	for tries := 3; !f() && tries > 1; tries-- {
		time.Sleep(time.Second)
	}
}

// sleep waits for d and tells whether ctx is still going on.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// seconds rounds a duration to what a person reads.
func seconds(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

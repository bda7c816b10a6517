package agent

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// repeatWarning is the time until a warning that stays is logged again.
const repeatWarning = time.Hour

// rechecks is the life after the release with RECHECK_INTERVAL: a round with one attempt of each check every interval. Package
// recheck decides; rechecks makes the rounds, reads the node, and shows the verdict on it. One goroutine owns it.
type rechecks struct {
	*deps
	state  recheck.State
	node   *nodepatch.Node // as last read
	readAt time.Time       // zero: before the release
	round  checklist.Options
	peers  peerSample
	met    map[string]bool      // the requirements that the node has met, at its release or since
	logged map[string]time.Time // the warnings that are not repeated, and until when
}

// newRecheck continues a verification.
func newRecheck(d *deps, v *verification, how outcome) *rechecks {
	r := &rechecks{deps: d, node: v.seen.node, peers: peerSample{deps: d}, logged: make(map[string]time.Time),
		met: make(map[string]bool)}
	settings := recheck.Settings{Interval: d.cfg.RecheckInterval, FailureThreshold: d.cfg.FailureThreshold,
		RecoveryThreshold: d.cfg.RecoveryThreshold, Random: rand.Float64}
	shown := v.report.marker.reason == verdict.Verified
	r.state = recheck.New(settings, r.facts(), how == released, shown, time.Now())
	r.metrics.SetRecheckStatus(r.state.Status != recheck.False)
	record, _ := verdict.ParseRecord(r.node.Annotations[d.request.Annotation])
	for _, e := range d.cfg.Require {
		if text := e.String(); how == released {
			r.met[text] = e.IsFor(r.node)
		} else { // what is not in the record may have been met and lost since; behind a reason of the controller's, nobody knows
			shown := r.node.Status.Conditions.Of(d.cfg.ConditionType)
			r.met[text] = slices.Contains(record.Required, text) || shown.Status != "" && shown.Status != recheck.True &&
				(!verdict.IsAgents(shown.Reason) || strings.Contains(shown.Message, text+": "))
		}
	}
	return r
}

func (r *rechecks) facts() recheck.Facts {
	facts := recheck.Read(r.node, r.readAt, r.request, r.cfg.ConditionType)
	facts.Gated = facts.Gated || r.always()
	return facts
}

// run rechecks the node until ctx ends. It returns true when the node is found unverified: somebody has removed the label, or
// added the startup taint.
func (r *rechecks) run(ctx context.Context) bool {
	debug.SetGCPercent(50) // as in hold
	for {
		action, at := r.state.Next(time.Now())
		if action == recheck.Verify {
			r.log.Info("node is no longer verified: verifying it again")
			return true
		}
		if !sleep(ctx, time.Until(at)) || ctx.Err() != nil {
			return false
		}
		switch action {
		case recheck.Look:
			if err := r.look(ctx); err != nil {
				r.log.WithError(err).Debug("cannot read the node between two rounds")
			}
		case recheck.Write:
			r.write(ctx)
		default:
			r.makeRound(ctx)
		}
	}
}

// makeRound makes one round, unless ctx ends: then there is no verdict.
func (r *rechecks) makeRound(ctx context.Context) {
	began := time.Now()
	r.round = r.state.Round(began)
	list := r.checks(checks.API{Get: r.readNode}, r.round)
	if r.cfg.EnableConnectivityMatrix {
		zone := func() string { return r.node.Labels["topology.kubernetes.io/zone"] }
		list = append(list, r.peers.check(r.round.PeersMustAnswer, zone))
	}
	node := func(context.Context) (*nodepatch.Node, error) { return r.node, nil } // without a new one the api check fails
	list = checklist.Requirements{List: r.cfg.Require, Client: r.client, Node: node, Met: r.met}.And(list)
	runner := checklist.Runner(r.cfg, r)
	runner.MaxRetries = 0
	results, err := runner.Round(ctx, list)
	if err != nil {
		return
	}
	before, failed := r.state.Status, failuresOf(results)
	r.happened(recheck.Event{Round: &recheck.Results{
		Options: r.round, Began: began, Failed: failed.checks, Message: failed.Error()}})
	if !r.isVerified(r.node) {
		return
	}
	r.metrics.SetRecheckStatus(r.state.Status != recheck.False)
	if r.state.IsUntouchable(began) {
		r.log.WithField("reason", nodepatch.Untouchable(r.node)).Debug("no verdict")
		return
	}
	r.report(before, r.judge(results))
}

// happened tells the state what the agent has done, now that the node is as last read.
func (r *rechecks) happened(e recheck.Event) {
	e.Now, e.Facts = time.Now(), r.facts()
	r.state = r.state.Step(e)
}

// report says what a round has changed since the status before; err is how it failed, or nil.
func (r *rechecks) report(before string, err error) {
	if err != nil {
		r.log.WithFields(logrus.Fields{"reason": brief(err), "failed": r.state.Failed, "threshold": r.cfg.FailureThreshold}).
			Warn("recheck failed")
	}
	switch {
	case r.state.Status == recheck.False && before != recheck.False:
		r.log.WithField("reason", brief(err)).Error("node failed its rechecks")
		r.events.Add(kube.EventWarning, verdict.RecheckFailed, r.state.Message())
	case r.state.Status == recheck.True && before == recheck.False:
		r.log.Info("node recovered")
		r.events.Add(kube.EventNormal, verdict.NodeRecovered, verdict.AllChecksPass+" again")
	}
}

// Attempted implements checks.Observer.
func (r *rechecks) Attempted(attempt checks.Attempt) {
	r.metrics.Attempt(attempt.Check, attempt.Took)
	log := r.log.WithFields(logrus.Fields{"check": attempt.Check, "took": formatDuration(attempt.Took)})
	loggedRecently := func(text string) bool { return r.loggedRecently(attempt.Check + ": " + text) }
	skipped := attempt.Report.Skipped
	warnings := slices.DeleteFunc(slices.Clone(attempt.Report.Warnings), loggedRecently)
	switch {
	case attempt.Err != nil:
		log.WithError(attempt.Err).WithField("remedy", checks.Remedy(attempt.Err)).Warn("check failed")
	case len(warnings) > 0:
		log.WithField("warning", strings.Join(warnings, "; ")).Warn("check passed with a warning")
	case skipped != "" && !loggedRecently(skipped):
		log.WithField("reason", skipped).Info("check skipped")
	case skipped == "":
		log.WithField("detail", attempt.Report.Detail).Debug("check passed")
	}
}

// loggedRecently reports whether the log has had this text within the last hour, and remembers it: each round connects to others
// of the peers and endpoints, and meets the dead ones among them again and again.
func (r *rechecks) loggedRecently(text string) bool {
	text, _, _ = strings.Cut(text, " (") // the rest changes: the times of two clocks, the number of a request
	now := time.Now()
	maps.DeleteFunc(r.logged, func(_ string, until time.Time) bool { return now.After(until) })
	if _, recently := r.logged[text]; recently {
		return true
	}
	r.logged[text] = now.Add(repeatWarning)
	return false
}

// readNode is the request of the api check: a read from the API server's cache. It keeps its connection, which saves the API
// server a TLS handshake with each node and round, because the network check makes a new connection in each round.
func (r *rechecks) readNode(ctx context.Context) (report checks.Report, err error) {
	var node *nodepatch.Node
	if r.round.NewConnection {
		r.client.CloseIdleConnections()
	}
	if r.round.Thorough {
		node, report, err = checklist.ReadNode(ctx, r.cfg.NodeName, r.api.GetCached)
	} else {
		report.Detail = "node " + r.cfg.NodeName + " read"
		node, err = r.api.GetCached(ctx)
	}
	if err == nil {
		err = r.keep(ctx, node)
	}
	return report, err
}

// keep keeps the node as read from the API server's cache. One that is not verified is read again, from etcd: the cache may be
// behind the release.
func (r *rechecks) keep(ctx context.Context, node *nodepatch.Node) (err error) {
	if !r.isVerified(node) {
		node, err = r.api.Get(ctx)
	}
	if err == nil {
		r.node, r.readAt = node, time.Now()
	}
	return err
}

// look reads the node from the API server's cache, between two rounds.
func (r *rechecks) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CheckTimeout)
	defer cancel()
	node, err := r.api.GetCached(ctx)
	if err == nil {
		err = r.keep(ctx, node)
	}
	if err == nil {
		r.happened(recheck.Event{})
	}
	return err
}

// write shows the verdict on the node: with the condition, with the failed taint that it removes, and with an Event.
func (r *rechecks) write(ctx context.Context) {
	var written recheck.Written
	var err error
	if time.Since(r.readAt) >= time.Minute { // rounds may be an hour apart
		err = r.look(ctx)
	}
	show := r.state.Shows(time.Now())
	if err == nil && show.Condition != nil {
		err = r.setCondition(ctx, *show.Condition)
		written.Condition = err == nil
	}
	if show.IsProven {
		err = errors.Join(err, r.removeFailedTaint(ctx))
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.log.WithError(err).Warn("cannot write the verdict to the node, will retry")
	}
	written.Err = err
	r.happened(recheck.Event{Write: &written})
}

func (r *rechecks) setCondition(ctx context.Context, condition nodepatch.Condition) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CheckTimeout)
	defer cancel()
	condition.Type = r.cfg.ConditionType
	node, err := r.api.SetCondition(ctx, r.node, condition, r.client.ServerTime())
	if err == nil { // the controller may have re-tainted it since it was read
		r.node, r.readAt = node, time.Now()
	}
	return err
}

func (r *rechecks) removeFailedTaint(ctx context.Context) error {
	if !nodepatch.HasFailedTaint(r.node, r.request) {
		return nil
	}
	if err := r.patcher.RemoveFailedTaint(ctx, r.node, r.request); err != nil {
		return err
	}
	r.log.Info("failed taint removed: the node passes its rechecks")
	isFailed := func(taint nodepatch.Taint) bool { return taint.Key == r.cfg.FailedTaintKey }
	r.node.Spec.Taints = slices.DeleteFunc(r.node.Spec.Taints, isFailed)
	return nil
}

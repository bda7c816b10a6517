package agent

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/nodecheck"
	"github.com/imunhatep/kube-node-ready/internal/ownnode"
	"github.com/imunhatep/kube-node-ready/internal/recheck"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// repeatWarning is the time until a warning that stays is logged again.
const repeatWarning = time.Hour

// rechecks is the life after the release with RECHECK_INTERVAL: a round with one attempt of each check every interval. Package
// recheck decides; rechecks makes the rounds, reads the node, and shows the verdict on it. One goroutine owns it.
type rechecks struct {
	*common
	own       *ownnode.Node
	newChecks checklist.List
	state     recheck.State
	peers     peerSample
	met       map[string]bool      // the requirements that the node has met, at its release or since; false if it has lost them
	logged    map[string]time.Time // the warnings that are not repeated, and until when
}

// begin begins with the node as a verification has left it.
func (r *rechecks) begin(how outcome) {
	settings := recheck.Settings{Interval: r.cfg.RecheckInterval, FailureThreshold: r.cfg.FailureThreshold,
		RecoveryThreshold: r.cfg.RecoveryThreshold, Random: rand.Float64}
	newState := recheck.Found
	if how == released {
		newState = recheck.Released
	}
	r.state = newState(settings, r.facts(), time.Now())
	r.metrics.SetRecheckStatus(r.state.Status != recheck.False)
	last, _ := record.Parse(r.own.Last().Annotations[nodepatch.Annotation])
	for _, requirement := range last.Required {
		r.met[requirement] = true
	}
}

func (r *rechecks) facts() recheck.Facts {
	facts := recheck.Read(r.own.Last(), r.own.Seen().At, r.access.Keys, r.cfg.ConditionType)
	facts.Gated = facts.Gated || r.cfg.ShowsEachVerdict()
	return facts
}

// run returns true when ctx ends, and false when the node is found unverified because its label or startup taint has changed.
func (r *rechecks) run(ctx context.Context) bool {
	for {
		action, at := r.state.Next(time.Now())
		if action == recheck.Verify {
			return false
		}
		if !round.Sleep(ctx, time.Until(at)) || ctx.Err() != nil {
			return true
		}
		switch action {
		case recheck.Look:
			if err := r.look(ctx, r.access.Client.GetCached); err != nil {
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
	options := r.state.Round(began)
	get := func(ctx context.Context) (checks.Report, error) { return r.readNode(ctx, options) }
	list := r.newChecks(checks.API{Get: get}, options)
	if r.cfg.ChecksPeers {
		zone := func() string { return r.own.Last().Labels["topology.kubernetes.io/zone"] }
		list = append(list, r.peers.check(options, zone))
	}
	node := func(context.Context) (*nodepatch.Node, error) { return r.own.Last(), nil } // without a new one the api check fails
	list = nodecheck.Requirements{List: r.cfg.Require, Client: r.access.Kube, Node: node, Met: r.met}.And(list)
	runner := checklist.Runner(r.cfg, r.attempted)
	runner.MaxRetries = 0
	results, err := runner.Round(ctx, list)
	if err != nil {
		return
	}
	before, failed := r.state.Status, round.FailureOf(results)
	found := recheck.Results{Options: options, Began: began, Failed: failed.Checks, Message: failed.Error(),
		Unknown: slices.ContainsFunc(results, func(result checks.Attempt) bool { return result.Report.IsUnknown })}
	r.state = r.state.AfterRound(found, r.facts(), time.Now())
	if !r.access.IsVerified(r.own.Last()) {
		return
	}
	r.metrics.SetRecheckStatus(r.state.Status != recheck.False)
	if r.state.IsUntouchable(began) {
		r.log.WithField("reason", nodepatch.Untouchable(r.own.Last())).Debug("no verdict")
		return
	}
	r.report(before, r.countFailures(failed))
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

// attempted counts and logs an attempt of a check.
func (r *rechecks) attempted(attempt checks.Attempt) {
	r.metrics.Attempt(attempt.Check, attempt.Took)
	log := r.log.WithFields(logrus.Fields{"check": attempt.Check, "took": round.FormatDuration(attempt.Took)})
	loggedRecently := func(text string) bool { return r.loggedRecently(attempt.Check + ": " + text) }
	warnings := slices.DeleteFunc(slices.Clone(attempt.Report.Warnings), loggedRecently)
	switch {
	case attempt.Err != nil:
		log.WithError(attempt.Err).WithField("remedy", checks.Remedy(attempt.Err)).Warn("check failed")
	case len(warnings) > 0:
		log.WithField("warning", strings.Join(warnings, "; ")).Warn("check passed with a warning")
	case attempt.Report.Skipped != "":
		if !loggedRecently(attempt.Report.Skipped) {
			log.WithField("reason", attempt.Report.Skipped).Info("check skipped")
		}
	default:
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
func (r *rechecks) readNode(ctx context.Context, options checklist.Options) (report checks.Report, err error) {
	var node *nodepatch.Node
	if options.NewConnection {
		r.access.Kube.CloseIdleConnections()
	}
	if options.Thorough {
		node, report, err = checklist.ReadNode(ctx, r.cfg.NodeName, r.access.Client.GetCached)
	} else {
		report.Detail = "node " + r.cfg.NodeName + " read"
		node, err = r.access.Client.GetCached(ctx)
	}
	return report, r.own.KeepCached(ctx, node, err)
}

// look reads the node between two rounds, with get.
func (r *rechecks) look(ctx context.Context, get func(context.Context) (*nodepatch.Node, error)) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CheckTimeout)
	defer cancel()
	node, err := get(ctx)
	if err = r.own.KeepCached(ctx, node, err); err == nil {
		r.state = r.state.AfterLook(r.facts(), time.Now())
	}
	return err
}

// write shows the verdict on the node: with the condition, and by removing the failed taint.
func (r *rechecks) write(ctx context.Context) {
	show, written := r.showCondition(ctx)
	for tries := 0; tries < maxConflicts && r.record() != "" && apierrors.IsConflict(written.Err); tries++ {
		show, written = r.showCondition(ctx)
	}
	unwritten := written.Err
	if show.IsProven && r.access.Keys.HasFailedTaint(r.own.Last().Spec.Taints) {
		if err := r.own.RemoveFailedTaint(ctx); err != nil {
			unwritten, written.Err = errors.Join(unwritten, err), err // the taint decides when both are tried again
		} else {
			r.log.Info("failed taint removed: the node passes its rechecks")
		}
	}
	if ctx.Err() != nil {
		return
	}
	if unwritten != nil {
		r.log.WithError(unwritten).Warn("cannot write the verdict to the node, will retry")
	}
	r.state = r.state.AfterWrite(written, r.facts(), time.Now())
}

// showCondition returns what the node should show, and writes the condition if it does not.
func (r *rechecks) showCondition(ctx context.Context) (show recheck.Show, written recheck.Written) {
	switch {
	case r.record() != "": // other clients write the record, too, and the cache may be behind
		written.Err = r.look(ctx, r.access.Client.Get)
	case time.Since(r.own.Seen().At) >= time.Minute: // rounds may be an hour apart
		written.Err = r.look(ctx, r.access.Client.GetCached)
	}
	show = r.state.Shows(time.Now())
	if written.Err == nil && show.Condition != nil {
		client := r.access.Client
		client.Record = r.record()
		client.IfUnchanged = client.Record != ""
		now, err := r.access.SetCondition(ctx, client, r.own.Last(), *show.Condition)
		written.Condition, written.Err = err == nil, err
		if err == nil {
			r.own.Keep(now) // the controller may have re-tainted it since it was read
		}
	}
	return show, written
}

// record returns the record with the lost requirements, for the next agent on this node, or "" if the record does not change.
func (r *rechecks) record() string {
	if r.state.Status != recheck.False {
		return ""
	}
	return record.Remember(r.own.Last().Annotations[nodepatch.Annotation], r.met)
}

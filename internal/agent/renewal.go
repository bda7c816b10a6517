package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	renewalFile  = "/run/kube-node-ready/renewal.json" // in an emptyDir, which outlives the sandbox
	firstPause   = 10 * time.Minute                    // until the second renewal, then twice as long, and so on
	longestPause = time.Hour
	endsWithin   = 10 * time.Second
)

// renewal ends the pod's sandbox while nothing at all answers in it (RENEW_SANDBOX). Kubelet makes a new one, and starts the agent
// again: that needs no right and no request. It belongs to the goroutine that calls Run, and has no step beside it: no patch is in
// flight. nil: it is switched off.
type renewal struct {
	*deps
	file       string
	endSandbox func() error
	bootID     string
	last       renewed
	since      time.Time   // the begin of the silence
	answered   atomic.Bool // since then
	tried      bool        // by this process, which goes on: a second try is of no use
}

// renewed is what the agent in the next sandbox must know of the last renewal, if there was one.
type renewed struct {
	BootID      string
	Start, Next time.Time // the begin of the silence, and when the next renewal may be
	Pause       time.Duration
}

// newRenewal reads what the agent before has kept. What is of another boot, long ago, or of a clock that was set later does not count.
func newRenewal(d *deps, file string, endSandbox func() error) *renewal {
	bootID, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	r := &renewal{deps: d, file: file, endSandbox: endSandbox, bootID: string(bootID)}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &r.last)
	}
	if err == nil && (r.last.BootID != r.bootID || time.Since(r.last.Start) < 0 || time.Since(r.last.Next).Abs() > longestPause) {
		err = errors.New("it is of another boot or another time")
	}
	switch log := r.log.WithField("record", string(text)); {
	case err == nil:
		log.Info("the sandbox was renewed")
	case !errors.Is(err, fs.ErrNotExist):
		log.WithError(err).Warn("the record of the last renewal does not count")
		fallthrough
	default:
		r.last = renewed{}
	}
	return r
}

// begin begins a silence, and returns when it began: the first one maybe in an earlier sandbox.
func (r *renewal) begin() time.Time {
	if r == nil {
		return time.Now()
	}
	r.since, r.last.Start = cmp.Or(r.last.Start, time.Now()), time.Time{}
	r.answered.Store(false)
	return r.since
}

// renew ends the sandbox and this process, if nothing has answered since begin. First it keeps the record: without, the next agent
// would begin again as if nothing had been, and renew too often.
func (r *renewal) renew(ctx context.Context) {
	now := time.Now()
	if r == nil || r.tried || r.answered.Load() || now.Before(r.last.Next) || ctx.Err() != nil {
		return
	}
	r.tried = true
	pause := min(max(2*r.last.Pause, firstPause), longestPause)
	text, _ := json.Marshal(renewed{r.bootID, r.since, now.Add(pause), pause}) // never fails
	err := os.WriteFile(r.file+".new", text, 0o600)
	if err == nil {
		err = os.Rename(r.file+".new", r.file)
	}
	if err == nil {
		r.log.WithField("record", string(text)).Warn("nothing answers: ending the sandbox, kubelet makes a new one")
		err = r.endSandbox()
	}
	if err == nil && sleep(ctx, endsWithin) {
		err = errors.New("the pause process goes on after SIGTERM")
	}
	if err != nil {
		r.metrics.Failure("sandbox")
		r.log.WithError(err).Error("the agent cannot renew its sandbox (RENEW_SANDBOX), and does not retry")
	}
}

// endSandbox sends SIGTERM to the pause process, PID 1 of the pod with shareProcessNamespace. In another PID namespace that is the
// agent itself, or the node's init.
func endSandbox() error {
	if name, _ := os.ReadFile("/proc/1/comm"); string(name) != "pause\n" {
		return fmt.Errorf("PID 1 is %q, and not the pause process", name)
	}
	return syscall.Kill(1, syscall.SIGTERM)
}

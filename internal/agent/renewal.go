package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptrace"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	renewalFile  = "/run/kube-node-ready/renewal.json" // in an emptyDir, which outlives the sandbox
	firstPause   = 10 * time.Minute                    // until the second renewal, then twice as long, and so on
	longestPause = time.Hour
)

// renewal ends the pod's sandbox while nothing at all answers in it (RENEW_SANDBOX). Kubelet makes a new one and starts the agent
// again: that needs no right and no request. It belongs to the goroutine that calls Run, and no step runs beside it: no patch is
// in flight. The exported fields are the record, which the next agent must know.
type renewal struct {
	BootID      string
	Start, Next time.Time     // the begin of the silence (zero: there is none), and from when on the sandbox may be renewed
	Pause       time.Duration // before Next; 0: it was not renewed

	deps       *deps
	file       string
	endSandbox func() error
	answered   atomic.Bool // since Start
	off        bool        // also once it was tried: a second try is of no use to a process that goes on
}

// newRenewal reads the record of the agent before. One of another boot, of long ago, or of a clock that was set since does not
// count.
func newRenewal(d *deps, file string, endSandbox func() error) *renewal {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	text, _ := os.ReadFile(file)
	r := new(renewal)
	err := json.Unmarshal(text, r)
	if err == nil && (r.BootID != string(boot) || time.Since(r.Start) < 0 || time.Since(r.Next).Abs() > longestPause) {
		err = errors.New("it is from another boot or another time")
	}
	if log := d.log.WithField("record", string(text)); err == nil {
		log.Info("the sandbox was renewed")
	} else if r = new(renewal); len(text) > 0 {
		log.WithError(err).Warn("the agent ignores the record of the last renewal")
	}
	r.BootID, r.deps, r.file, r.endSandbox, r.off = string(boot), d, file, endSandbox, !d.cfg.RenewSandbox
	return r
}

// listen returns a context that notices whatever answers a check or a request: a connection that is accepted or refused, a DNS
// reply, an HTTP response. The errors of attempts do not tell: they name the silence that followed.
func (r *renewal) listen(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotFirstResponseByte: func() { r.answered.Store(true) },
		ConnectDone: func(network, _ string, err error) {
			if network != "udp" && (err == nil || errors.Is(err, syscall.ECONNREFUSED)) { // UDP sends nothing yet
				r.answered.Store(true)
			}
		},
	})
}

// begin begins a silence, or goes on with that of an earlier sandbox.
func (r *renewal) begin(start time.Time) time.Time {
	r.Start = start
	r.answered.Store(false)
	return start
}

// forget ends a silence, and with it the record: nothing of it counts for the next one.
func (r *renewal) forget() {
	r.Start, r.Next, r.Pause = time.Time{}, time.Time{}, 0
	_ = os.Remove(r.file)
}

// renew ends the sandbox and this process, if nothing has answered since begin, for INITIAL_TIMEOUT. First it writes the record:
// without it, the next agent would begin INITIAL_TIMEOUT again, and renew too often.
func (r *renewal) renew(ctx context.Context, isDue bool) {
	if !isDue || r.off || r.answered.Load() || time.Since(r.Start) < r.deps.cfg.InitialTimeout || time.Now().Before(r.Next) ||
		ctx.Err() != nil {
		return
	}
	r.off = true
	r.Pause = min(max(2*r.Pause, firstPause), longestPause)
	r.Next = time.Now().Add(r.Pause)
	text, _ := json.Marshal(r) // never fails
	err := os.WriteFile(r.file+".new", text, 0o600)
	if err == nil {
		err = os.Rename(r.file+".new", r.file)
	}
	log := r.deps.log.WithField("record", string(text))
	if err == nil {
		log.Warn("nothing answers: ending the sandbox, kubelet makes a new one")
		if err = r.endSandbox(); err == nil && sleep(ctx, 10*time.Second) {
			err = errors.New("the pause process still runs after SIGTERM")
		}
		if err != nil {
			r.forget() // the next agent is in the same sandbox
		}
	}
	if err != nil {
		r.deps.metrics.Failure("sandbox")
		log.WithError(err).Error("the agent cannot renew its sandbox (RENEW_SANDBOX), and does not retry")
	}
}

// endSandbox sends SIGTERM to the pause process, which is PID 1 with shareProcessNamespace. Without, that is the agent itself; in
// the node's PID namespace it is the node's init.
func endSandbox() error {
	if name, _ := os.ReadFile("/proc/1/comm"); string(name) != "pause\n" {
		return fmt.Errorf("PID 1 is %q, not the pause process", name)
	}
	return syscall.Kill(1, syscall.SIGTERM)
}

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// timeline is the way of a node from its registration to the first workload. timeline.json holds it, timeline.svg shows it.
type timeline struct {
	Registered time.Time `json:"registered"`
	Steps      []step    `json:"steps"`
	Agent      []step    `json:"agent"` // what the step of the agent consists of
}

// step has its times in milliseconds after the registration. One that takes no time ends when it starts.
type step struct {
	What  string  `json:"what"`
	Who   who     `json:"who"`
	Start float64 `json:"startMs"`
	End   float64 `json:"endMs"`
}

// who decides the colour of a step.
type who string

const (
	byCluster  who = "cluster"
	byAgent    who = "agent"
	byWorkload who = "workload"
)

// writeTimeline writes timeline.json and timeline.svg into the cluster's folder.
func (d *demo) writeTimeline(seen verification) error {
	history, err := d.history()
	if err != nil {
		return err
	}
	steps, err := history.timeline(seen)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(steps, "", "\t")
	if err != nil {
		return err
	}
	path := filepath.Join(d.Dir, "timeline")
	d.say("all of this as a picture: %s.svg", path)
	return errors.Join(os.WriteFile(path+".json", append(text, '\n'), 0o644), os.WriteFile(path+".svg", draw(steps), 0o644))
}

// history finds requests in the API server's audit log. It notes those that are not there.
type history struct {
	requests []harness.Request // in the order in which they were answered
	missing  []string
}

// Users in the audit log.
const (
	kubelet       = "system:node:" + node
	daemonSets    = "system:serviceaccount:kube-system:daemon-set-controller"
	kubeScheduler = "system:kube-scheduler"
)

// history reads what concerns the node since the chapter began.
func (d *demo) history() (*history, error) {
	h := &history{}
	for _, user := range []string{kubelet, daemonSets, kubeScheduler, harness.User} {
		requests, err := d.Audit(d.began, user)
		if err != nil {
			return nil, err
		}
		h.requests = append(h.requests, requests...)
	}
	h.requests = slices.DeleteFunc(h.requests, func(r harness.Request) bool { return r.Response.Code >= 300 })
	slices.SortFunc(h.requests, func(a, b harness.Request) int { return a.Answered.Compare(b.Answered) })
	return h, nil
}

// find returns the first request of user, with this verb and resource ("pods/binding"), about this object ("" for any).
func (h *history) find(user, verb, resource, name string) harness.Request {
	return h.first(fmt.Sprintf("%s: %s %s %s", user, verb, resource, name), func(r harness.Request) bool {
		about := r.ObjectRef.Resource
		if r.ObjectRef.Subresource != "" {
			about += "/" + r.ObjectRef.Subresource
		}
		return r.User.Username == user && r.Verb == verb && about == resource && (name == "" || r.ObjectRef.Name == name)
	})
}

// event returns when kubelet sent the first Event with this reason about this object: Events have whole seconds only.
func (h *history) event(reason, name string) time.Time {
	return h.first(fmt.Sprintf("Event %s of %s", reason, name), func(r harness.Request) bool {
		event := r.Event()
		return r.User.Username == kubelet && event.Reason == reason && event.InvolvedObject.Name == name
	}).Received
}

func (h *history) first(what string, fits func(harness.Request) bool) harness.Request {
	i := slices.IndexFunc(h.requests, fits)
	if i < 0 {
		h.missing = append(h.missing, what)
		return harness.Request{}
	}
	return h.requests[i]
}

// timeline joins the audit log and the agent's log, whose times come from the same clock.
func (h *history) timeline(seen verification) (timeline, error) {
	registered := h.find(kubelet, "create", "nodes", "").Answered
	from := func(what string, who who, start, end time.Time) step {
		return step{what, who, milliseconds(start.Sub(registered)), milliseconds(end.Sub(registered))}
	}
	patch := h.find(harness.User, "patch", "nodes", node)
	checks := h.checks(seen.log, patch.Received)
	created := h.find(daemonSets, "create", "pods", "").Answered
	ready := h.event("NodeReady", node)
	bound := h.find(kubeScheduler, "create", "pods/binding", "workload").Answered
	working := h.event("Started", "workload")
	started := h.event("Started", seen.pod)
	var parts []step
	for _, c := range checks {
		parts = append(parts, from(c.what, byAgent, c.start, c.end))
		if c.start.Before(started) { // kubelet sends the Event while the agent already works
			started = c.start
		}
	}
	if len(h.missing) > 0 {
		return timeline{}, fmt.Errorf("the logs lack %s", strings.Join(h.missing, "; "))
	}
	parts = append(parts, from("one patch: taint off, label on", byAgent, patch.Received, patch.Answered))
	slices.SortFunc(parts, func(a, b step) int { return cmp.Compare(a.Start, b.Start) })
	return timeline{Registered: registered, Agent: parts, Steps: []step{
		from("node registers with the startup taint", byCluster, registered, registered),
		from("agent's pod is created", byCluster, created, created),
		from("node is Ready", byCluster, ready, ready),
		from("kubelet starts the agent", byCluster, created, started),
		from("agent checks and releases the node", byAgent, started, patch.Answered),
		from("workload waits", byWorkload, registered, bound),
		from("kubelet starts the workload", byCluster, bound, working),
	}}, nil
}

// check is what a check does, from its first attempt to the end of its last one.
type check struct {
	what       string
	start, end time.Time
}

// checks returns the checks, the last one first. A log line is written shortly after its attempt, which ends at the latest
// when the next check or the patch begins.
func (h *history) checks(log []harness.LogLine, patched time.Time) (found []check) {
	next := patched
	for _, it := range []struct{ name, what string }{
		{"service", "service: reaches the DNS pods"},
		{"network", "network: connects to a ClusterIP"},
		{"api", "api: reads its Node"},
		{"dns", "dns: resolves names"},
	} {
		start, logged, err := attempts(log, it.name)
		if err != nil {
			h.missing = append(h.missing, err.Error())
			continue
		}
		end := logged
		if next.Before(end) {
			end = next
		}
		if it.name == "api" { // it may use the read with which the agent starts
			end = h.read(end)
		}
		start = start.Add(end.Sub(logged))
		if it.name != "api" {
			next = start
		}
		found = append(found, check{it.what, start, end})
	}
	return found
}

// read returns when the agent's last read of its node before a time was answered.
func (h *history) read(before time.Time) (at time.Time) {
	for _, r := range h.requests {
		if r.User.Username == harness.User && r.Verb == "get" && r.ObjectRef.Resource == "nodes" && r.Answered.Before(before) {
			at = r.Answered
		}
	}
	if at.IsZero() {
		h.missing = append(h.missing, "the agent's read of its node")
	}
	return at
}

// attempts returns when the first attempt of a check began, and when the last one was logged.
func attempts(log []harness.LogLine, name string) (start, logged time.Time, err error) {
	for _, line := range log {
		took, err := time.ParseDuration(line.Took)
		if line.Check != name || err != nil {
			continue
		}
		if start.IsZero() {
			start = line.Time.Add(-took)
		}
		logged = line.Time
	}
	if start.IsZero() {
		return start, logged, fmt.Errorf("the %s check", name)
	}
	return start, logged, nil
}

// milliseconds are rounded to hundredths.
func milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

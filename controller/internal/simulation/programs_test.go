//go:build !race

package simulation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/app"
	"github.com/imunhatep/kube-node-ready/internal/agent"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/oneround"
	"github.com/imunhatep/kube-node-ready/metrics"
)

// The programs of ours, as kubelet starts them. Only sockets are replaced.

const apiHost = "10.96.0.1"

// environment is what a process finds in its pod.
func (p *process) environment() kube.Environment {
	e := kube.Environment{Service: apiHost + ":443", REST: &rest.Config{Host: "http://" + apiHost, BearerToken: "secret", QPS: -1,
		UserAgent: "kube-node-ready/dev", Transport: p, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}}
	e.Client, e.Err = kube.NewClient(e.REST)
	if e.Err != nil {
		panic(e.Err)
	}
	return e
}

// settings are the variables of a program.
func (w *world) lookup(of release, more map[string]string) func(string) (string, bool) {
	all := w.options.env()
	maps.Copy(all, of.settings())
	maps.Copy(all, more)
	all["KUBERNETES_SERVICE_HOST"], all["KUBERNETES_SERVICE_PORT"] = apiHost, "443"
	return func(key string) (string, bool) {
		value, found := all[key]
		return value, found
	}
}

// played is a check that says what is true of the machine's network.
type played struct {
	name string
	p    *process
}

func (c played) Name() string { return c.name }

// Try tries each second, as the real checks do, or until the context ends.
func (c played) Try(ctx context.Context) (checks.Report, error) {
	w := c.p.w
	refused := draw(w, func() bool { return w.chance(0.3) }) // else nothing answers, and another poll of this attempt may pass
	for took := draw(w, func() time.Duration { return w.between(time.Millisecond, 60*time.Millisecond) }); ; took = time.Second {
		select {
		case <-ctx.Done():
			w.mu.Lock()
			c.p.rounds = 0
			w.mu.Unlock()
			return checks.Report{}, &checks.Failure{Cause: errors.New(c.name + " does not answer"), Remedy: "wait"}
		case <-time.After(took):
		}
		w.mu.Lock()
		fails := w.failsFor(c.p, c.name)
		if c.name == checks.PeersName {
			if fails = fails && c.p.missesPeers(); fails && refused { // otherwise another poll may pass
				c.p.rounds = 0
			}
		} else if c.p.note(c.name, fails); fails {
			if refused {
				c.p.rounds = 0
			}
		} else if c.name == checks.ServiceName { // the last one of a round
			c.p.rounds++
		}
		w.mu.Unlock()
		if !fails {
			return checks.Report{Detail: "played"}, nil
		}
		if refused {
			return checks.Report{}, &checks.Failure{Cause: errors.New(c.name + " is refused"), Remedy: "wait"}
		}
	}
}

// missesPeers reports whether none of the other agents answering means something: there are three of them, or it has before. The
// lock is held.
func (p *process) missesPeers() bool {
	others := 0
	for _, m := range p.w.machines {
		for _, r := range m.runs {
			if m != p.machine && r.process != nil && !r.worker {
				others++
			}
		}
	}
	p.hasMissedPeers = p.hasMissedPeers || others >= 3
	return p.hasMissedPeers
}

// note notes how an attempt of a check of the network ended. The lock is held.
func (p *process) note(check string, fails bool) {
	if fails {
		delete(p.passed, check)
		p.failed, p.failing = time.Now(), cmp.Or(p.failing, time.Now())
		return
	}
	if p.passed[check] = time.Now(); check == checks.ServiceName && len(p.passed) == len(checks.Names()) {
		p.failing = time.Time{}
	}
}

// fail notes that a request may fail, and by that the check api, which is not played. The lock is held.
func (p *process) fail(q request) {
	p.failing = cmp.Or(p.failing, time.Now())
	isRead := q.resource == "nodes" && q.verb == http.MethodGet
	if isRead {
		delete(p.passed, checks.APIName)
	}
	if isRead || q.sub == "status" {
		p.hindered = time.Now()
	}
}

// play replaces the checks that need sockets.
func (p *process) played(list []checks.Check) []checks.Check {
	for i, check := range list {
		switch check.Name() {
		case checks.DNSName, checks.NetworkName, checks.ServiceName:
			list[i] = played{check.Name(), p}
		}
	}
	return list
}

// agent is one agent, until it ends.
func (m *machine) agent(ctx context.Context, p *process, r *run, exits chan<- int) {
	w := m.w
	cfg, err := config.Parse(nil, w.lookup(p.release, map[string]string{"NODE_NAME": m.name, "POD_NAMESPACE": namespace}), io.Discard)
	if err != nil {
		panic(err)
	}
	e := p.environment()
	recorder := metrics.New(m.name, checklist.Names(cfg), "dev", "")
	a := agent.New(cfg, e, recorder, p.log(), "dev")
	list := a.Checks
	a.Checks = func(api checks.API, o checklist.Options) []checks.Check {
		all := p.played(list(api, o))
		if node := draw(w, func() *corev1.Node { return w.node(m.name) }); w.options.stage == stageRetaint && node != nil && node.Labels[label] == "true" {
			all = append(all, played{checks.PeersName, p})
		}
		return all
	}
	w.mu.Lock()
	r.handler = recorder.Handler()
	w.mu.Unlock()
	if verified := a.Run(ctx, context.Background()); !verified {
		exits <- 1
		return
	}
	exits <- 0
}

// worker is one worker, until it ends.
func (m *machine) worker(ctx context.Context, p *process, pod *corev1.Pod, r *run, exits chan<- int) {
	w := m.w
	env := map[string]string{"NODE_NAME": m.name, "POD_NAMESPACE": namespace, "CLUSTER_CA": ca}
	for _, container := range pod.Spec.Containers {
		for _, variable := range container.Env {
			env[variable.Name] = variable.Value
		}
	}
	cfg, err := config.Parse([]string{"--worker"}, w.lookup(p.release, env), io.Discard)
	if err != nil {
		panic(err)
	}
	worker := oneround.NewWorker(cfg, p.log(), "dev")
	list := worker.Checks
	worker.Checks = func(e kube.Environment) []checks.Check { return p.played(list(e)) }
	worker.TerminationLog = w.terminationLog(pod.Name)
	_ = os.WriteFile(worker.TerminationLog, nil, 0o600)
	w.mu.Lock()
	r.handler = worker.Handler()
	w.mu.Unlock()
	if worker.Run(ctx, p.environment()) {
		exits <- 0
		return
	}
	exits <- 1
}

// toWorker is the controller's request to a worker.
func (p *process) toWorker(r *http.Request) (*http.Response, error) {
	w := p.w
	w.mu.Lock()
	var handler http.Handler
	for _, m := range w.machines {
		for _, run := range m.runs {
			if run.process != nil && run.worker && r.URL.Hostname() == run.ip && !w.failsFor(run.process, "network") && !w.failsFor(p, "network") {
				handler = run.handler
			}
		}
	}
	w.mu.Unlock()
	if handler == nil {
		select {
		case <-r.Context().Done():
		case <-time.After(3 * time.Second):
		}
		return nil, errors.New("no route to host")
	}
	answered := make(chan *http.Response, 1)
	go func() {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, r)
		answered <- recorder.Result()
	}()
	select {
	case response := <-answered:
		return response, r.Context().Err()
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// log tells the story what an agent or a worker logs.
func (p *process) log() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.AddHook(hook{p})
	return log.WithField("node", p.machine.name)
}

type hook struct{ *process }

func (hook) Levels() []logrus.Level {
	return []logrus.Level{logrus.InfoLevel, logrus.WarnLevel, logrus.ErrorLevel}
}

func (h hook) Fire(entry *logrus.Entry) error {
	var text strings.Builder
	text.WriteString(entry.Message)
	for _, key := range slices.Sorted(maps.Keys(entry.Data)) {
		if key != "node" && key != "took" && key != "remedy" && key != "detail" {
			_, _ = fmt.Fprintf(&text, " %s=%v", key, entry.Data[key])
		}
	}
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if entry.Data["check"] == checks.APIName && strings.HasPrefix(entry.Message, "check failed") {
		h.failed = time.Now()
	}
	if entry.Message != "check passed" {
		h.w.tell(h.machine.name, h.name, "%s", text.String())
	}
	return nil
}

// replica is one pod of the controller. Its process ends when it loses the Lease, and is started again.
type replica struct {
	w       *world
	release release
	name    string
	machine *machine
	system  *machine // where it runs if no node of the fleet is verified
	process *process
	kill    context.CancelFunc
	left    chan struct{}
	more    map[string]string // its settings
}

func (c *replica) run() {
	w := c.w
	for n := 0; !w.hasEnded(); n++ {
		ctx, kill := context.WithCancel(context.Background())
		w.mu.Lock()
		c.schedule()
		c.process = w.newProcess(c.name, c.machine)
		c.process.release, c.process.controller = c.release, true
		c.process.retaints = w.options.retaint && c.more["RETAINT"] != "false"
		c.kill, c.left = kill, make(chan struct{})
		p, left := c.process, c.left
		w.tell("", c.name, "starts")
		w.quiet = time.Now()
		env := maps.Clone(c.more)
		w.mu.Unlock()
		go func() {
			defer close(left)
			if err := p.program(env).Run(ctx); err != nil {
				w.mu.Lock()
				w.tell("", c.name, "ends: %v", err)
				w.mu.Unlock()
			}
		}()
		select {
		case <-left:
		case <-ctx.Done():
		case <-w.over:
		}
		w.mu.Lock()
		w.quiet = time.Now()
		w.mu.Unlock()
		kill()
		<-left
		if !w.pause(time.Second, 20*time.Second) {
			return
		}
	}
}

// schedule chooses a machine for the replica, and makes its pod. The lock is held.
func (c *replica) schedule() {
	w := c.w
	if !w.options.inFleet {
		return
	}
	key := namespace + "/" + c.name
	w.remove("pods", key)
	if c.machine.gone || !c.machine.up || c.machine.pool == nil || w.node(c.machine.name) == nil || w.judge.isRetainted(w.node(c.machine.name)) {
		c.machine = c.system
		if some := w.verified(1, false); len(some) > 0 {
			c.machine = some[0]
		}
	}
	labels := maps.Clone(w.options.template(c.release).Labels)
	labels[component] = "controller"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: c.name, Namespace: namespace, Labels: labels, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "controller", UID: types.UID(fmt.Sprint("replicaset-", c.release)), Controller: new(true)}}}}
	pod.Spec.NodeName, pod.Status.Phase = c.machine.name, corev1.PodRunning
	setReady(pod, true, metav1.NewTime(w.serverTime()))
	w.add("pods", pod)
}

// end ends the process: gracefully, or at once. The lock is held.
func (c *replica) end(gracefully bool) {
	if c.process != nil && c.kill != nil {
		c.process.dead = !gracefully
		c.w.tell("", c.name, "is ended, gracefully %t", gracefully)
		c.kill()
	}
}

// controller returns the program, without its sockets.
func (p *process) program(more map[string]string) app.Controller {
	w := p.w
	env := map[string]string{"NODE_NAME": p.machine.name, "POD_NAMESPACE": namespace, "AGENT_TEMPLATE": w.templateFile(p.release)}
	maps.Copy(env, more)
	cfg, err := config.ParseController(nil, w.lookup(p.release, env), io.Discard)
	if err != nil {
		panic(err)
	}
	skip := true
	return app.Controller{Config: cfg, Environment: p.environment(), Log: slog.New(storyteller{p}), Program: config.Program{Version: "dev"},
		Registry: prometheus.NewRegistry(), WorkerTransport: p, ControlGroup: []checks.Check{played{checks.DNSName, p}, played{checks.NetworkName, p}, played{checks.ServiceName, p}},
		Options: func(o *ctrl.Options) {
			o.Controller.SkipNameValidation = &skip
			lease, renew, retry := 30*time.Second, 20*time.Second, 5*time.Second // twice the usual times: a third of all requests are the election's
			if w.options.stage != "" {
				lease, renew, retry = 4*lease, 4*renew, 4*retry
			}
			o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = &lease, &renew, &retry
			o.Metrics.BindAddress, o.HealthProbeBindAddress = "0", "0"
		}}
}

// storyteller tells the story what a controller logs.
type storyteller struct{ p *process }

func (s storyteller) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}
func (s storyteller) WithAttrs(attrs []slog.Attr) slog.Handler      { return told{s, attrs} }
func (s storyteller) WithGroup(string) slog.Handler                 { return s }
func (s storyteller) Handle(_ context.Context, r slog.Record) error { return s.tell(r, nil) }
func (s storyteller) tell(r slog.Record, attrs []slog.Attr) error {
	r.Attrs(func(attr slog.Attr) bool {
		attrs = append(attrs, attr)
		return true
	})
	node, text := "", r.Message
	for _, attr := range attrs {
		if attr.Key == "node" {
			node = attr.Value.String()
		} else {
			text += " " + attr.Key + "=" + attr.Value.String()
		}
	}
	s.p.w.mu.Lock()
	defer s.p.w.mu.Unlock()
	s.p.w.tell(node, s.p.name, "%s", text)
	return nil
}

type told struct {
	storyteller
	attrs []slog.Attr
}

func (t told) WithAttrs(attrs []slog.Attr) slog.Handler {
	return told{t.storyteller, append(slices.Clone(t.attrs), attrs...)}
}
func (t told) Handle(_ context.Context, r slog.Record) error { return t.tell(r, slices.Clone(t.attrs)) }

// writeTemplates writes the pod templates that the chart would have rendered.
func (w *world) writeTemplates() {
	for _, of := range w.releases() {
		text, _ := yaml.Marshal(w.options.template(of))
		if err := os.WriteFile(w.templateFile(of), text, 0o600); err != nil {
			panic(err)
		}
	}
}

func (w *world) templateFile(of release) string {
	return filepath.Join(w.dir, of.agentName()+".yaml")
}

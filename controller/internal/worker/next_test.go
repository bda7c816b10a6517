package worker

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startup  = "node-ready/unverified"
	verified = "node-ready/verified"
	// failing is a verdict.
	failing = `{"verified":false,"node":"n","failed":["dns"],"message":"dns: NXDOMAIN","version":"v"}`
)

func newSettings() Settings {
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"component": "worker"}},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"kubernetes.io/os": "linux"},
			Containers:   []corev1.Container{{Name: "worker", Env: []corev1.EnvVar{{Name: "NODE_NAME"}, {Name: "DNS_ENDPOINTS", Value: "old"}}}},
		},
	}
	keys := nodepatch.Keys{TaintKey: startup, FailedTaintKey: "node-ready/failed", Label: verified, LabelValue: "true"}
	keys.WaitFor = []string{"cni/"}
	return Settings{
		Fleet:     fleet.Settings{Rules: fleet.NewRules(template, keys), Keys: keys, ConditionType: "NodeVerified", Workers: true},
		AgentName: "knr", Namespace: "system", Template: template, ClusterDomain: "cluster.local", MaxWorkers: 4, Version: "v", Round: 3 * time.Minute,
	}
}

// newNode is gated.
func newNode() *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node-uid", Labels: map[string]string{"kubernetes.io/os": "linux"}, Annotations: map[string]string{}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}},
	}
	node.Status.NodeInfo.BootID = "boot"
	return node
}

// newWorker is one of that node.
func newWorker(name string, attempt int, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "system", UID: types.UID(name + "-uid"), Labels: map[string]string{"component": "worker"}, Annotations: map[string]string{
			fleet.AttemptAnnotation: strconv.Itoa(attempt), fleet.NodeUIDAnnotation: "node-uid", fleet.BootIDAnnotation: "boot",
			fleet.TemplateAnnotation: newSettings().templateHash()},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: "n", UID: "node-uid", Controller: new(true)}}},
		Spec: corev1.PodSpec{NodeName: "n"},
	}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func running(pod *corev1.Pod) {
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
}

func ready(pod *corev1.Pod) {
	running(pod)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func ended(code int32, message string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.Conditions = nil
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}}}}
	}
}

func evicted(pod *corev1.Pod) {
	pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
}

func deleting(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

func createdAt(t time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.CreationTimestamp = metav1.NewTime(t) }
}

// failingFor is how long the node had failed when the worker was created.
func failingFor(d time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.CreationTimestamp = metav1.NewTime(time.Unix(1e9, 0))
		pod.Annotations[fleet.FirstAnnotation] = pod.CreationTimestamp.Add(-d).UTC().Format(time.RFC3339)
	}
}

func annotate(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[key] = value }
}

// describe formats a step for a person.
func describe(s step) string {
	text := ""
	switch action := s.action.(type) {
	case release:
		text = "release by " + action.by.Name + "; "
	case removal:
		text = "remove taint; "
	case creation:
		text = fmt.Sprintf("create %d; ", action.attempt)
	}
	for _, pod := range s.delete {
		text += "delete " + pod.Name + "; "
	}
	if s.wait > 0 {
		text += "wait " + s.wait.String() + "; "
	}
	if text == "" {
		return "nothing"
	}
	return text[:len(text)-2]
}

func isCreation(s step) bool {
	_, creates := s.action.(creation)
	return creates
}

func TestNext(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	taint := func(key string) func(*corev1.Node) {
		return func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}
	label := func(node *corev1.Node) { node.Labels[verified] = "true" }
	untaint := func(node *corev1.Node) { node.Spec.Taints = nil }
	opened := func(node *corev1.Node) { node.Annotations[nodepatch.Opened] = "2026-01-01T00:00:00Z" }
	annotation := func(value string) func(*corev1.Node) {
		return func(node *corev1.Node) { node.Annotations[nodepatch.Annotation] = value }
	}
	releasedBy := func(worker string) func(*corev1.Node) {
		return annotation(`{"time":"2026-01-01T00:00:00Z","bootID":"boot","worker":"` + worker + `"}`)
	}
	boot := func(id string) func(*corev1.Node) {
		return func(node *corev1.Node) { node.Status.NodeInfo.BootID = id }
	}
	version := func(version string) func(*corev1.Node) {
		return func(node *corev1.Node) { node.ResourceVersion = version }
	}
	type states = map[string]workerState
	for name, test := range map[string]struct {
		other   bool          // another leader has created the workers
		timeout time.Duration // INITIAL_TIMEOUT
		node    []func(*corev1.Node)
		workers []*corev1.Pod
		seen    states
		m       memory
		want    string
		first   string // of the retry
	}{
		"a new node":             {want: "create 1"},
		"verified":               {node: []func(*corev1.Node){label, untaint}, want: "nothing"},
		"verified, worker left":  {node: []func(*corev1.Node){label, untaint}, workers: []*corev1.Pod{newWorker("a", 1, ready)}, want: "delete a"},
		"never gated":            {node: []func(*corev1.Node){untaint}, want: "nothing"},
		"taint taken by hand":    {node: []func(*corev1.Node){untaint}, workers: []*corev1.Pod{newWorker("a", 1, running)}, want: "delete a"},
		"opened by command":      {node: []func(*corev1.Node){untaint, opened}, want: "create 1"},
		"opened, worker passed":  {node: []func(*corev1.Node){untaint, opened}, workers: []*corev1.Pod{newWorker("a", 1, ready)}, want: "release by a"},
		"opened and excluded":    {node: []func(*corev1.Node){untaint, opened, func(node *corev1.Node) { node.Labels[verified] = "preexisting" }}, want: "nothing"},
		"not selected":           {node: []func(*corev1.Node){func(node *corev1.Node) { node.Labels["kubernetes.io/os"] = "windows" }}, want: "nothing"},
		"cordoned":               {node: []func(*corev1.Node){func(node *corev1.Node) { node.Spec.Unschedulable = true }}, workers: []*corev1.Pod{newWorker("a", 1, ready)}, want: "nothing"},
		"disrupted by Karpenter": {node: []func(*corev1.Node){taint("karpenter.sh/disrupted")}, want: "nothing"},
		"foreign taint":          {node: []func(*corev1.Node){taint("cni/not-ready")}, want: "nothing"},
		"not registered":         {node: []func(*corev1.Node){taint("karpenter.sh/unregistered")}, want: "nothing"},
		"foreign taint came":     {node: []func(*corev1.Node){taint("cni/not-ready")}, workers: []*corev1.Pod{newWorker("a", 1, ready)}, want: "delete a"},

		"label removed":                     {node: []func(*corev1.Node){untaint, releasedBy("x-uid")}, want: "create 1"},
		"label removed, the worker is left": {node: []func(*corev1.Node){untaint, releasedBy("a-uid")}, workers: []*corev1.Pod{newWorker("a", 1, ready)}, want: "create 1; delete a"},
		"label removed, another passed":     {node: []func(*corev1.Node){untaint, releasedBy("a-uid")}, workers: []*corev1.Pod{newWorker("b", 1, ready)}, want: "release by b"},

		"taint put back":                    {node: []func(*corev1.Node){label, releasedBy("x-uid")}, want: "remove taint"},
		"taint put back by a fast client":   {node: []func(*corev1.Node){label, releasedBy("x-uid")}, m: memory{tries: tries{1, mark(ago(time.Second))}}, want: "wait 1s"},
		"taint put back in another boot":    {node: []func(*corev1.Node){label, releasedBy("x-uid"), boot("second")}, want: "create 1"},
		"taint put back, no boot recorded":  {node: []func(*corev1.Node){label, annotation(`{"time":"2026-01-01T00:00:00Z"}`)}, want: "create 1"},
		"taint put back, no boot at all":    {node: []func(*corev1.Node){label, annotation(`{"time":"2026-01-01T00:00:00Z"}`), boot("")}, want: "create 1"},
		"label that we have not written":    {node: []func(*corev1.Node){label}, want: "create 1"},
		"annotation that is not ours":       {node: []func(*corev1.Node){label, annotation("mine")}, want: "create 1"},
		"taint put back, foreign taint too": {node: []func(*corev1.Node){label, releasedBy("x-uid"), taint("cni/not-ready")}, want: "nothing"},

		"waits":   {workers: []*corev1.Pod{newWorker("a", 1)}, want: "nothing"},
		"runs":    {workers: []*corev1.Pod{newWorker("a", 1, running)}, want: "nothing"},
		"passed":  {workers: []*corev1.Pod{newWorker("a", 1, ready)}, want: "release by a"},
		"deleted": {workers: []*corev1.Pod{newWorker("a", 1, ready, deleting)}, want: "create 1"},
		"deleted, and the cache does not show it": {workers: []*corev1.Pod{newWorker("a", 1, ready)}, seen: states{"a": {first: mark(ago(time.Second)), fate: deleted}}, want: "create 1"},
		"passed, signal missed":                   {workers: []*corev1.Pod{newWorker("a", 1, ended(0, ""))}, seen: states{"a": {first: mark(ago(time.Minute))}}, want: "release by a"},
		"passed 2m ago":                           {workers: []*corev1.Pod{newWorker("a", 1, ready)}, seen: states{"a": {first: mark(ago(3 * time.Minute)), ended: mark(ago(2 * time.Minute))}}, want: "create 2"},
		"ended before this leader":                {workers: []*corev1.Pod{newWorker("a", 3, ended(0, ""))}, want: "create 3"},
		"for a node of the same name":             {workers: []*corev1.Pod{newWorker("a", 1, ready, annotate(fleet.NodeUIDAnnotation, "other"))}, want: "create 1; delete a"},
		"before a reboot":                         {workers: []*corev1.Pod{newWorker("a", 4, ready, annotate(fleet.BootIDAnnotation, "other"))}, want: "create 1; delete a"},
		"verdict void":                            {workers: []*corev1.Pod{newWorker("a", 1, ready)}, seen: states{"a": {first: mark(ago(time.Second)), fate: voided}}, want: "create 1; delete a"},

		"passed, and kubelet says so late":           {workers: []*corev1.Pod{newWorker("a", 2, ended(0, ""))}, seen: states{"a": {first: mark(ago(31 * time.Minute)), ran: mark(ago(30 * time.Minute))}}, want: "create 2"},
		"passed after a long round":                  {workers: []*corev1.Pod{newWorker("a", 1, ended(0, ""))}, seen: states{"a": {first: mark(ago(time.Hour)), ran: mark(ago(4 * time.Minute))}}, want: "release by a"},
		"passed, never seen to run":                  {workers: []*corev1.Pod{newWorker("a", 1, ended(0, ""))}, seen: states{"a": {first: mark(ago(10 * time.Minute))}}, want: "create 1"},
		"was ready, and has ended":                   {workers: []*corev1.Pod{newWorker("a", 1, ended(0, ""))}, seen: states{"a": {first: mark(ago(time.Hour)), ran: mark(ago(time.Hour)), passed: true, ended: mark(ago(time.Minute))}}, want: "release by a"},
		"has said so, or was ready before":           {workers: []*corev1.Pod{newWorker("a", 1, running)}, seen: states{"a": {first: mark(ago(time.Hour)), ran: mark(ago(time.Hour)), passed: true, ended: mark(ago(time.Minute))}}, want: "release by a"},
		"waits with an earlier template":             {workers: []*corev1.Pod{newWorker("a", 2, annotate(fleet.TemplateAnnotation, "old"))}, want: "create 1; delete a"},
		"runs with an earlier template":              {workers: []*corev1.Pod{newWorker("a", 1, running, annotate(fleet.TemplateAnnotation, "old"))}, want: "nothing"},
		"waits with an earlier template, and a slot": {workers: []*corev1.Pod{newWorker("a", 1, annotate(fleet.TemplateAnnotation, "old"), createdAt(ago(time.Minute))), newWorker("b", 1, createdAt(now))}, want: "delete a"},

		"failed":                   {workers: []*corev1.Pod{newWorker("a", 1, ended(1, failing))}, want: "wait 30s"},
		"failed 10s ago":           {workers: []*corev1.Pod{newWorker("a", 1, ended(1, failing))}, seen: states{"a": {first: mark(ago(time.Minute)), ended: mark(ago(10 * time.Second))}}, want: "wait 20s"},
		"failed 30s ago":           {workers: []*corev1.Pod{newWorker("a", 1, ended(1, failing))}, seen: states{"a": {first: mark(ago(time.Minute)), ended: mark(ago(30 * time.Second))}}, want: "create 2"},
		"failed for two minutes":   {workers: []*corev1.Pod{newWorker("a", 2, ended(1, failing), failingFor(2*time.Minute))}, want: "wait 2m0s"},
		"failed for eight minutes": {workers: []*corev1.Pod{newWorker("a", 5, ended(1, failing), failingFor(8*time.Minute))}, want: "wait 6m25.78125s"},
		"failed for a day":         {workers: []*corev1.Pod{newWorker("a", 100, ended(1, failing), failingFor(24*time.Hour))}, want: "wait 6m25.78125s"},
		"failed before INITIAL_TIMEOUT": {timeout: 5 * time.Minute, workers: []*corev1.Pod{newWorker("a", 4, ended(1, failing), failingFor(5*time.Minute-time.Second))},
			seen: states{"a": {first: mark(ago(time.Minute))}}, want: "create 5"},
		"failed at once": {timeout: 5 * time.Minute, workers: []*corev1.Pod{newWorker("a", 1, ended(1, failing))},
			seen: states{"a": {first: mark(ago(time.Second))}}, want: "wait 9s"},
		"failed after INITIAL_TIMEOUT": {timeout: 5 * time.Minute, workers: []*corev1.Pod{newWorker("a", 9, ended(1, failing), failingFor(5*time.Minute))}, want: "wait 30s"},
		"crashed before INITIAL_TIMEOUT": {timeout: 5 * time.Minute, workers: []*corev1.Pod{newWorker("a", 1, ended(2, "usage"))},
			seen: states{"a": {first: mark(ago(time.Minute))}}, want: "wait 30s"},
		"crashed": {workers: []*corev1.Pod{newWorker("a", 3, ended(2, "usage"), failingFor(time.Minute))}, want: "wait 1m0s"},
		"evicted": {workers: []*corev1.Pod{newWorker("a", 3, evicted)}, want: "wait 10s"},
		"retry evicted 10s ago": {workers: []*corev1.Pod{newWorker("a", 3, evicted, annotate(fleet.FirstAnnotation, "then"))}, first: "then",
			seen: states{"a": {first: mark(ago(time.Minute)), ended: mark(ago(10 * time.Second))}}, want: "create 3"},
		"evicted 10s ago":              {workers: []*corev1.Pod{newWorker("a", 3, evicted)}, seen: states{"a": {first: mark(ago(time.Minute)), ended: mark(ago(10 * time.Second))}}, want: "create 3"},
		"the failed one is kept":       {workers: []*corev1.Pod{newWorker("a", 1, ended(1, failing))}, seen: states{"a": {first: mark(ago(time.Minute)), ended: mark(ago(time.Minute))}, "b": {first: mark(ago(time.Second)), own: true}}, want: "wait 5s"},
		"until its successor is there": {workers: []*corev1.Pod{newWorker("a", 1, ended(1, failing), createdAt(ago(time.Minute))), newWorker("b", 2, createdAt(now))}, want: "delete a"},
		"in the same second":           {workers: []*corev1.Pod{newWorker("b", 1, evicted), newWorker("a", 1)}, want: "delete b"},
		"the successor passes":         {workers: []*corev1.Pod{newWorker("b", 2, ready), newWorker("a", 1, ended(1, failing), createdAt(ago(time.Minute)))}, want: "release by b; delete a"},

		"created, and not in the cache yet":                {seen: states{"a": {first: mark(ago(29 * time.Second)), own: true}}, want: "wait 5s"},
		"created, and never seen":                          {seen: states{"a": {first: mark(ago(30 * time.Second)), own: true}}, want: "create 1"},
		"released, and not in the cache yet":               {node: []func(*corev1.Node){version("99")}, workers: []*corev1.Pod{newWorker("a", 1, ready)}, m: memory{cacheLag: cacheLag{"100", mark(ago(time.Second))}}, want: "wait 29s"},
		"released, and gated again":                        {node: []func(*corev1.Node){version("101")}, workers: []*corev1.Pod{newWorker("a", 1, ready)}, seen: states{"a": {first: mark(ago(time.Minute)), fate: voided}}, m: memory{cacheLag: cacheLag{"100", mark(ago(time.Second))}}, want: "create 1; delete a"},
		"released, versions without order":                 {node: []func(*corev1.Node){version("x")}, m: memory{cacheLag: cacheLag{"y", mark(ago(time.Second))}}, want: "wait 29s"},
		"of another leader, ready":                         {other: true, workers: []*corev1.Pod{newWorker("a", 1, ready)}, want: "create 1"},
		"failed before the retry that has passed unproven": {other: true, workers: []*corev1.Pod{newWorker("a", 9, ended(1, failing)), newWorker("b", 10, ended(0, ""), createdAt(now))}, want: "create 10; delete a"},
		"failed in the repeated attempt":                   {other: true, workers: []*corev1.Pod{newWorker("a", 10, ended(0, "")), newWorker("b", 10, ended(1, failing), createdAt(now))}, want: "delete a; wait 30s"},
		"of another leader, and looks newer":               {other: true, workers: []*corev1.Pod{newWorker("a", 1, ready, createdAt(now)), newWorker("b", 1, running, createdAt(ago(time.Minute)))}, want: "delete a"},
		"of another leader, ends now":                      {other: true, workers: []*corev1.Pod{newWorker("a", 1, ended(0, ""))}, seen: states{"a": {first: mark(ago(time.Second)), ran: mark(ago(time.Second))}}, want: "create 1"},
		"released, and the annotation lost":                {m: memory{releasedAt: mark(ago(time.Minute))}, want: "create 1"},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode()
			for _, change := range test.node {
				change(node)
			}
			test.m.workers = test.seen
			m, _ := test.m.observe(test.workers, at(now))
			for name, state := range m.workers {
				state.own = !test.other
				m.workers[name] = state
			}
			s := newSettings()
			s.Fleet.FailedAfter = test.timeout
			decided := s.next(view{node: node, pods: test.workers, memory: m, now: at(now), unmet: new("")})
			assert.Equal(t, test.want, describe(decided))
			if wanted, _ := decided.action.(creation); wanted.attempt == 3 { // the same attempt again
				assert.Equal(t, test.first, wanted.first)
			}
		})
	}
}

// What happens to a node whose checks never pass: one worker after the other until INITIAL_TIMEOUT, then pauses of 30 s to 8 minutes.
// A worker that ends without a verdict says nothing about the network: then there are pauses from the start.
func TestRetries(t *testing.T) {
	for name, test := range map[string]struct {
		ended   func(*corev1.Pod)
		round   time.Duration
		timeout time.Duration
		want    []time.Duration
	}{
		"failed rounds": {ended(1, failing), 50 * time.Second, 3 * time.Minute, []time.Duration{0, 0, 0, 0, 30, 100, 250, 480}},
		"short rounds":  {ended(1, failing), time.Second, 20 * time.Second, []time.Duration{9, 9, 30, 34, 70, 142, 286, 480}},
		"crashes":       {ended(2, "usage"), time.Second, 3 * time.Minute, []time.Duration{30, 31, 63, 127, 255, 480}},
	} {
		t.Run(name, func(t *testing.T) { testRetries(t, test.ended, test.round, test.timeout, test.want) })
	}
}

func testRetries(t *testing.T, ends func(*corev1.Pod), round, timeout time.Duration, want []time.Duration) {
	s, node, start := newSettings(), newNode(), time.Unix(1e9, 0)
	s.Fleet.FailedAfter = timeout
	var m memory
	var workers []*corev1.Pod
	var pauses []time.Duration
	for now := start; len(pauses) <= len(want); now = now.Add(time.Second) {
		m, _ = m.observe(workers, at(now))
		if decided := s.next(view{node: node, pods: workers, memory: m, now: at(now)}); isCreation(decided) {
			wanted := decided.action.(creation)
			assert.Equal(t, len(pauses)+1, wanted.attempt)
			if len(workers) > 0 {
				pauses = append(pauses, now.Sub(workers[0].CreationTimestamp.Add(round))/time.Second)
			} else {
				pauses = append(pauses, 0)
			}
			pod := s.newPod(fmt.Sprint(wanted.attempt), "key", node, wanted, nil)
			pod.UID, pod.CreationTimestamp = types.UID(pod.Name), metav1.NewTime(now)
			running(pod)
			workers = []*corev1.Pod{pod}
		}
		if now.Sub(workers[0].CreationTimestamp.Time) >= round {
			ends(workers[0])
		}
	}
	for i, pause := range pauses[1:] {
		if want[i] == longestRetry/time.Second {
			assert.InDelta(t, 5*60, int(pause), 3*60, pauses)
		} else {
			assert.InDelta(t, int(want[i]), int(pause), 2+float64(want[i])/8, pauses)
		}
	}
}

// A node that evicts every worker gets few of them.
func TestInterruptions(t *testing.T) {
	s, node, start := newSettings(), newNode(), time.Now()
	var m memory
	var workers []*corev1.Pod
	created := 0
	evictFor := func(from, to time.Duration) {
		for now := start.Add(from); now.Before(start.Add(to)); now = now.Add(time.Second) {
			m, _ = m.observe(workers, at(now))
			if decided := s.next(view{node: node, pods: workers, memory: m, now: at(now)}); isCreation(decided) {
				created++
				assert.Equal(t, 1, decided.action.(creation).attempt, "no failed attempt")
				workers = []*corev1.Pod{newWorker(fmt.Sprint(created), 1, evicted)}
			}
		}
	}
	evictFor(0, time.Hour)
	assert.InDelta(t, 16, created, 1)
	workers = []*corev1.Pod{newWorker("passes", 1, ready)}
	m, _ = m.observe(workers, at(start.Add(time.Hour)))
	workers, created = []*corev1.Pod{newWorker("is evicted", 1, evicted)}, 0
	evictFor(time.Hour, time.Hour+time.Minute)
	assert.Equal(t, 2, created, "after 10 and 20 s")
}

func TestNewPod(t *testing.T) {
	s := newSettings()
	endpoints := []string{"10.0.0.1:53/m", "[fd00::1]:53/n"}
	pod := s.newPod("knr-worker-x", "key", newNode(), creation{attempt: 3, first: "then"}, endpoints)
	assert.Equal(t, map[string]string{"component": "worker", nodeLabel: "n"}, pod.Labels)
	assert.Equal(t, []corev1.EnvVar{{Name: "NODE_NAME"}, {Name: "DNS_ENDPOINTS", Value: "10.0.0.1:53/m,[fd00::1]:53/n"},
		{Name: "CLUSTER_DOMAIN", Value: "cluster.local"}, {Name: "VERDICT_KEY", Value: "key"}}, pod.Spec.Containers[0].Env)
	assert.Equal(t, corev1.RestartPolicyNever, pod.Spec.RestartPolicy)
	assert.False(t, *pod.Spec.AutomountServiceAccountToken)
	owner := pod.OwnerReferences[0]
	assert.Equal(t, "Node n node-uid", fmt.Sprintf("%s %s %s", owner.Kind, owner.Name, owner.UID))
	assert.True(t, *owner.Controller)
	assert.False(t, *owner.BlockOwnerDeletion)
	assert.Equal(t, "n", fleet.NodeOf(pod), "the scheduler and the controller read the same")
	assert.Equal(t, 3, fleet.Attempt(pod))
	assert.Equal(t, "then", pod.Annotations[fleet.FirstAnnotation])
	pod.UID = "uid"
	assert.Equal(t, evidence, s.standingOf(pod, view{node: newNode()}))
	assert.Equal(t, map[string]string{"component": "worker"}, s.Template.Labels, "the template stays as it is")

	many := []string{"10.0.0.1:53/n"}
	for i := range 5000 {
		many = append(many, fmt.Sprintf("10.1.%d.%d:53/m", i/250, i%250))
	}
	given := func() []string {
		for _, variable := range s.newPod("x", "key", newNode(), creation{attempt: 1}, many).Spec.Containers[0].Env {
			if variable.Name == "DNS_ENDPOINTS" {
				return strings.Split(variable.Value, ",")
			}
		}
		return nil
	}
	assert.Len(t, given(), maxEndpoints)
	assert.NotEqual(t, given(), given(), "others for the next attempt")

	other := newSettings()
	assert.Equal(t, s.templateHash(), other.templateHash())
	other.Template.Spec.Containers[0].Image = "corrected"
	assert.NotEqual(t, s.templateHash(), other.templateHash())

	long := newNode()
	long.Name = "a-name-that-is-longer-than-sixty-three-characters.eu-central-1.compute.internal"
	assert.NotContains(t, s.newPod("x", "key", long, creation{attempt: 1}, nil).Labels, nodeLabel)
	assert.NotEqual(t, s.newName(), s.newName())
}

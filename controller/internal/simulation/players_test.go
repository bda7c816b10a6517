//go:build !race

package simulation

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// pool is a NodePool of Karpenter, or a node group of a cloud: it keeps its number of machines.
type pool struct {
	name      string
	release   release
	size      int
	karpenter bool
	gated     bool
	badLater  float64 // the share of its later machines that have a flaw, on a stage
	late      bool    // the platform adds the startup taint after the Node was created
	role      string
	machines  int // that it has made
}

const (
	unregistered = "karpenter.sh/unregistered"
	poolLabel    = "karpenter.sh/nodepool"
	groupLabel   = "eks.amazonaws.com/nodegroup"
)

// someone is who deletes through the API server, as controllers of Kubernetes and people do.
func (w *world) someone() *process {
	p := w.newProcess("someone", nil)
	p.person = true
	return p
}

// expel deletes an object as a client does: gracefully. The lock is held.
func (w *world) expel(resource, key string) {
	if v, found := w.now[resource][key]; found {
		var is meta
		_ = json.Unmarshal(v.body, &is)
		in, name, _ := strings.Cut(key, "/")
		w.delete(request{from: w.someone(), verb: "DELETE", resource: resource, namespace: in, name: name}, v, is)
	}
}

// controllers play the DaemonSet controller, the scheduler and the garbage collector.
func (w *world) controllers() {
	templates := make(map[release]*corev1.PodTemplateSpec)
	for _, of := range w.releases() {
		templates[of] = w.options.template(of)
	}
	for n := 0; ; {
		select {
		case <-w.over:
			return
		case <-w.wakes:
		case <-time.After(time.Minute):
		}
		if !w.pause(20*time.Millisecond, 700*time.Millisecond) {
			return
		}
		w.mu.Lock()
		byNode := make(map[string][]*corev1.Pod)
		for key := range maps.Clone(w.now["pods"]) {
			pod := read[corev1.Pod](w, "pods", key)
			name := fleet.NodeOf(pod)
			if isController(pod) {
				continue
			}
			byNode[name] = append(byNode[name], pod)
			switch {
			case w.node(name) == nil && pod.DeletionTimestamp == nil:
				w.expel("pods", key)
			case pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && w.machines[name] != nil && w.fails(w.machines[name], "room"):
				w.editPod(pod.Name, func(pod *corev1.Pod) {
					pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "Insufficient cpu"}}
				})
			case pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil:
				w.editPod(pod.Name, func(pod *corev1.Pod) { pod.Spec.NodeName = name })
			}
		}
		for _, key := range slices.Sorted(maps.Keys(w.now["nodes"])) {
			node := read[corev1.Node](w, "nodes", key)
			if w.options.workers || node == nil {
				continue
			}
			for _, of := range w.releases() {
				w.syncAgent(node, byNode[node.Name], of, templates[of], &n)
			}
		}
		w.mu.Unlock()
	}
}

// syncAgent creates or deletes the pod of a release's agent on a node, as its DaemonSet demands. n counts the pods. The lock is held.
func (w *world) syncAgent(node *corev1.Node, pods []*corev1.Pod, of release, template *corev1.PodTemplateSpec, n *int) {
	matches, _ := nodeaffinity.NewRequiredNodeAffinity(nil, template.Spec.Affinity).Match(node)
	matches = matches && !w.isLeftOut(node)
	live := 0
	for _, pod := range pods {
		switch {
		case releaseOfPod(pod) != of:
		case pod.DeletionTimestamp != nil:
			live++ // the next one comes when this one is gone
		default:
			if live++; !matches {
				w.expel("pods", namespace+"/"+pod.Name)
			}
		}
	}
	if !matches || live > 0 || node.DeletionTimestamp != nil {
		return
	}
	*n++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("agent-%s-%d", node.Name, *n), Namespace: namespace, Labels: template.Labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: of.agentName(), UID: "daemonset", Controller: new(true)}}},
		Spec: template.Spec, Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}}}
	if pod.Spec.NodeName = node.Name; w.machines[node.Name] != nil && w.fails(w.machines[node.Name], "room") {
		pod.Spec.NodeName, pod.Status.Conditions, pod.Spec.Affinity = "", nil, fleetAffinity(node.Name)
	}
	w.add("pods", pod)
}

// fleetAffinity is what the DaemonSet controller adds to a pod that is for one node.
func fleetAffinity(node string) *corev1.Affinity {
	field := corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{field}}}}}}
}

// isController reports whether a pod is one of the controller's own.
func isController(pod *corev1.Pod) bool { return pod.Labels[component] == "controller" }

// keep makes the machines of a pool, and replaces those that are deleted.
func (p *pool) keep(w *world) {
	for first := true; ; first = false {
		w.mu.Lock()
		have := 0
		for _, m := range w.machines {
			if m.pool == p && !m.gone {
				have++
			}
		}
		for ; have < p.size && !w.calm; have++ {
			p.machines++
			m := &machine{w: w, name: fmt.Sprintf("%s-%d", p.name, p.machines), pool: p, zone: fmt.Sprint("zone-", p.machines%3), runs: make(map[string]*run), wake: make(chan struct{}, 1),
				gated: p.gated, role: p.role, gpus: 8, up: true, disturbed: time.Now()}
			if p.late {
				m.late = w.between(2*time.Second, 45*time.Second)
			}
			w.machines[m.name] = m
			w.counts.lives++
			if left := time.Until(w.ends); w.options.stage == "" && left > 0 && w.chance(w.options.bad) {
				w.breaks(&fault{kind: "bad machine", on: only(m), layers: []string{"network", "service"}}, m.name, left)
			}
			if w.options.opens() && w.openings.Float64() < 0.4 && !w.calm { // a network that comes after INITIAL_TIMEOUT, or just before
				late := time.Duration((0.5+w.openings.Float64())*float64(w.options.initial)) + time.Duration(w.openings.Float64()*float64(20*time.Minute))
				w.breaks(&fault{kind: "late network", on: only(m), layers: []string{"network", "service"}}, m.name, late)
			}
			delay := w.between(10*time.Second, 40*time.Second)
			if first {
				delay = w.between(0, 3*time.Minute)
			}
			m.arrive(first)
			w.play(func() { m.live(delay) })
		}
		w.mu.Unlock()
		if !w.pause(5*time.Second, 15*time.Second) {
			return
		}
	}
}

// live is the life of a machine: it registers its Node, runs its kubelet, and ends when somebody has deleted the Node or its claim.
func (m *machine) live(delay time.Duration) {
	w := m.w
	if m.pool.karpenter {
		w.mu.Lock()
		claim := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim"}}
		m.claim = "claim-" + m.name
		claim.SetName(m.claim)
		claim.SetLabels(map[string]string{poolLabel: m.pool.name})
		claim.SetFinalizers([]string{"karpenter.sh/termination"})
		w.add("nodeclaims", claim)
		w.mu.Unlock()
	}
	if !w.sleep(delay) {
		return
	}
	w.mu.Lock()
	m.register()
	w.mu.Unlock()
	w.play(m.kubelet)
	for w.pause(2*time.Second, 6*time.Second) {
		w.mu.Lock()
		ends := m.manage()
		w.mu.Unlock()
		if ends {
			w.pause(5*time.Second, draw(w, func() time.Duration { return w.terminates() }))
			w.mu.Lock()
			w.tell(m.name, "machine", "is gone")
			m.goDown()
			m.gone = true
			w.faults = slices.DeleteFunc(w.faults, func(f *fault) bool {
				if f.one == m {
					f.end()
				}
				return f.one == m
			})
			w.editNode(m.name, func(node *corev1.Node) { node.Finalizers = nil })
			w.remove("nodes", "/"+m.name)
			edit(w, "nodeclaims", "/"+m.claim, func(claim *map[string]any) { delete((*claim)["metadata"].(map[string]any), "finalizers") })
			w.remove("nodeclaims", "/"+m.claim)
			w.mu.Unlock()
			m.poke()
			return
		}
	}
}

// terminates is how long the end of a machine takes at most. The lock is held.
func (w *world) terminates() time.Duration {
	if w.options.stage != "" && w.chance(0.3) {
		return 20 * time.Minute
	}
	return 40 * time.Second
}

// manage is what Karpenter, or the cloud, does about the machine. It reports whether the machine ends. The lock is held.
func (m *machine) manage() (ends bool) {
	w, node := m.w, m.w.node(m.name)
	if !m.pool.karpenter {
		return node == nil && m.held == 0 || node != nil && node.DeletionTimestamp != nil
	}
	claim := read[map[string]any](w, "nodeclaims", "/"+m.claim)
	if claim == nil {
		return true
	}
	object := unstructured.Unstructured{Object: *claim}
	if object.GetDeletionTimestamp() != nil || node != nil && node.DeletionTimestamp != nil {
		if node != nil && node.DeletionTimestamp == nil {
			w.editNode(m.name, func(node *corev1.Node) {
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule})
			})
			w.expel("nodes", "/"+m.name)
			return false
		}
		return true
	}
	if node == nil {
		return false
	}
	registered := !fleet.HasTaint(node, unregistered)
	if !registered {
		w.editNode(m.name, func(node *corev1.Node) {
			node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == unregistered })
			if m.gated && !fleet.HasTaint(node, startupTaint) && node.Labels[label] == "" {
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: startupTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule})
			}
			node.Labels[poolLabel] = m.pool.name
			node.Finalizers = []string{"karpenter.sh/termination"}
			node.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: m.claim, UID: object.GetUID()}}
		})
		edit(w, "nodeclaims", "/"+m.claim, func(claim *map[string]any) {
			(*claim)["status"] = map[string]any{"nodeName": m.name, "providerID": "machine:///" + m.name}
		})
	}
	return false
}

func (m *machine) allocatable() corev1.ResourceList {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	if m.gpus > 0 {
		list[gpu] = *resource.NewQuantity(int64(m.gpus), resource.DecimalSI)
	}
	return list
}

// register creates the Node, as kubelet does. The lock is held.
func (m *machine) register() {
	w := m.w
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, Labels: map[string]string{"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": m.zone},
		Annotations: map[string]string{"example.com/owner": "somebody"}}}
	node.Spec.ProviderID = "machine:///" + m.name
	if m.pool.karpenter {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: unregistered, Effect: corev1.TaintEffectNoExecute})
	} else {
		node.Labels[groupLabel] = m.pool.name
	}
	if m.role != "" {
		node.Labels[m.role] = "true"
	}
	if m.pool.release == secondRelease {
		node.Labels[poolKey] = "gpu"
	}
	if w.options.releases == 2 && w.chance(0.3) {
		leaveBehind(node)
	}
	if w.options.workers && m.late == 0 && w.chance(0.2) { // an agent has released it, before controller mode
		released := record.Record{Time: w.serverTime().Format(time.RFC3339), BootID: m.bootID(), Removed: []string{}}
		if m.gated {
			released.Removed = append(released.Removed, startupTaint+"=true:NoSchedule")
		}
		node.Labels[label], node.Annotations[nodepatch.Annotation] = "true", released.String()
	}
	if w.options.waitFor != "" && !m.hasForeignTaint && w.chance(0.5) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: cniTaint, Effect: corev1.TaintEffectNoSchedule})
		w.later(w.between(time.Second, 90*time.Second), func() { m.untaint(cniTaint) })
	}
	if m.gated && m.late == 0 && node.Labels[label] == "" {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: startupTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	}
	if m.hasForeignTaint {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: cniTaint, Effect: corev1.TaintEffectNoSchedule})
	}
	node.Status.NodeInfo.BootID, node.Status.Allocatable = m.bootID(), m.allocatable()
	setCondition(node, corev1.NodeReady, corev1.ConditionTrue, w.serverTime())
	w.add("nodes", node)
	m.disturb()
	w.tell(m.name, "machine", "registers, boot %s, taints %v", m.bootID(), fleet.Taints(node))
	if uid := w.node(m.name).UID; m.gated && m.late > 0 {
		w.later(m.late, func() {
			if now := w.node(m.name); now != nil && uid == now.UID {
				w.tell(m.name, "platform", "adds the startup taint late")
				m.taint(corev1.Taint{Key: startupTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule})
			}
		})
	}
}

// registerAgain deletes the Node, and kubelet creates it again. The lock is held.
func (m *machine) registerAgain() {
	w := m.w
	if m.pool.karpenter {
		return
	}
	m.hold()
	w.remove("nodes", "/"+m.name)
	w.later(oneOf(w, w.between(time.Millisecond, time.Second), w.between(time.Second, 40*time.Second)), func() {
		if !m.gone && w.node(m.name) == nil {
			m.register()
		}
		m.release()
	})
}

// later does something with the lock, unless the world has ended.
func (w *world) later(d time.Duration, do func()) {
	w.play(func() {
		if w.sleep(d) {
			w.mu.Lock()
			defer w.mu.Unlock()
			do()
		}
	})
}

func (m *machine) taint(taint corev1.Taint) {
	m.w.editNode(m.name, func(node *corev1.Node) {
		if !fleet.HasTaint(node, taint.Key) {
			at := m.w.random.IntN(len(node.Spec.Taints) + 1)
			node.Spec.Taints = slices.Insert(node.Spec.Taints, at, taint)
		}
	})
}

func (m *machine) untaint(key string) {
	m.w.editNode(m.name, func(node *corev1.Node) {
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	})
}

// endpoints are those of the cluster's DNS, which controller mode needs.
func (w *world) addEndpoints() {
	port, protocol, ready := int32(53), corev1.ProtocolTCP, true
	w.add("endpointslices", &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "kube-dns-1", Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: "kube-dns"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol, Name: new("dns-tcp")}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.250.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: new("dns-node")}}})
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	fleetSize  = 5000
	heartbeats = 17 // a second: kubelet writes the status of a node that does not change every 5 minutes
	observed   = time.Minute
)

// controller measures the controller beside a fleet of nodes of 15 kB each: at the incident (no node is verified, no agent
// runs), and at rest (all are verified, and kubelets send heartbeats). Nothing else runs in this cluster.
func (b *bench) controller(ctx context.Context) (err error) {
	start, err := b.stopControllers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, start()) }()
	template, err := b.agentTemplate(ctx)
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(template)
	if err != nil {
		return err
	}
	file := filepath.Join(b.Dir, "bench-agent.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	program := func(streams bool) *exec.Cmd {
		command := exec.CommandContext(ctx, controllerPath(), "--kubeconfig", b.Kubeconfig(), "--agent-template", file,
			"--not-started-after=5s", "--metrics-port=18080", "--health-port=18081")
		command.Env = append(os.Environ(), fmt.Sprintf("KUBE_FEATURE_WatchListClient=%v", streams))
		return command
	}
	defer func() { err = errors.Join(err, b.removeFleet(context.WithoutCancel(ctx))) }()
	b.step("controller: %d nodes and as many pods", fleetSize)
	if err := b.createFleet(ctx, template, "default"); err != nil {
		return err
	}
	for _, streams := range []bool{true, false} {
		b.step("controller: no node is verified, lists are streamed: %v", streams)
		used, err := b.observe(ctx, program(streams), false)
		if err != nil {
			return err
		}
		if streams {
			b.budget("controller, 5,000 nodes unverified: peak resident memory", used.mebibytes, incidentBudget, "%.0f MiB")
		} else {
			b.figure("the same, from an API server that does not stream lists", "%.0f MiB", used.mebibytes)
		}
		b.figure("its CPU in the first minute", "%.1f s", used.cpu.Seconds())
	}
	b.step("controller: every node is verified, %d heartbeats a second", heartbeats)
	if err := b.verifyFleet(ctx); err != nil {
		return err
	}
	used, err := b.observe(ctx, program(true), true)
	if err != nil {
		return err
	}
	b.step("controller: the same, a program that only watches the nodes")
	baseline, err := b.observe(ctx, exec.CommandContext(ctx, os.Args[0], "watch", b.Kubeconfig()), true)
	if err != nil {
		return err
	}
	b.budget("controller, 5,000 nodes verified: peak resident memory", used.mebibytes, restBudget, "%.0f MiB")
	b.budget("controller, 5,000 nodes verified: CPU, compared with a program that only watches the nodes",
		used.cpu.Seconds()/baseline.cpu.Seconds(), restCPUBudget, "%.2f times")
	mCPU := func(o observation) float64 { return 1000 * o.cpu.Seconds() / observed.Seconds() }
	b.figure("controller, 5,000 nodes verified: CPU", "%.1f mCPU, baseline %.1f mCPU", mCPU(used), mCPU(baseline))
	b.budget("controller, 5,000 nodes verified: requests a minute", float64(used.requests), restRequestsBudget, "%.0f")
	return nil
}

// stopControllers stops what would change the benchmark's nodes and pods, until start is called.
func (b *bench) stopControllers(ctx context.Context) (start func() error, err error) {
	components := []string{"kube-controller-manager", "kube-scheduler"}
	start = func() (err error) {
		for _, component := range components {
			_, startErr := b.Script(context.WithoutCancel(ctx), "start", component)
			err = errors.Join(err, startErr)
		}
		return err
	}
	for _, component := range components {
		if _, err := b.Script(ctx, "stop", component); err != nil {
			return nil, errors.Join(err, start())
		}
	}
	return start, nil
}

// agentTemplate is the pod template of the chart's DaemonSet.
func (b *bench) agentTemplate(ctx context.Context) (*corev1.PodTemplateSpec, error) {
	manifests, err := b.Render(ctx)
	if err != nil {
		return nil, err
	}
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		set := new(appsv1.DaemonSet)
		if err := yaml.Unmarshal([]byte(document), set); err == nil && set.Kind == "DaemonSet" {
			return &set.Spec.Template, nil
		}
	}
	return nil, errors.New("the chart renders no DaemonSet")
}

// createFleet creates nodes as large as real ones (the images make most of it), and a pod for each that cannot pull its image. The
// pods have a service account of this name.
func (b *bench) createFleet(ctx context.Context, template *corev1.PodTemplateSpec, account string) error {
	if err := b.createNodes(ctx, nodePrefix, fleetSize, true); err != nil {
		return err
	}
	var images []corev1.ContainerImage
	for i := range 45 {
		digest := strings.Repeat(fmt.Sprintf("%02x", i), 32)
		name := fmt.Sprintf("123456789012.dkr.ecr.eu-central-1.amazonaws.com/platform/service-%02d", i)
		images = append(images, corev1.ContainerImage{Names: []string{name + "@sha256:" + digest, name + ":v1.2.3"}, SizeBytes: 123456789})
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	status, err := json.Marshal(map[string]any{"status": map[string]any{"images": images, "conditions": []corev1.NodeCondition{ready}}})
	if err != nil {
		return err
	}
	labels := map[string]string{created: ""}
	for key, value := range template.Labels {
		labels[key] = value
	}
	return b.parallel(ctx, fleetSize, "nodes with a pod", func(i int) error {
		node := fmt.Sprintf("%s%05d", nodePrefix, i)
		if _, err := b.Kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: harness.Namespace, Labels: labels}, Spec: *template.Spec.DeepCopy()}
		pod.Spec.NodeName = node
		pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken = account, new(bool)
		pod, err := b.Kube.CoreV1().Pods(harness.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		pod.Status.Phase = corev1.PodPending
		for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodScheduled, corev1.PodReady, corev1.ContainersReady} {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue})
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", Image: pod.Spec.Containers[0].Image, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image: " + strings.Repeat("x", 200)}}}}
		_, err = b.Kube.CoreV1().Pods(harness.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
}

// verifyFleet releases every node, the real one too (one that waits would have the controller decide every 10 s), takes the
// conditions back, and deletes the pods, as the agents and the DaemonSet controller do.
func (b *bench) verifyFleet(ctx context.Context) error {
	open := []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"taints":null}}`, harness.Label))
	if err := b.Patch(ctx, node, string(open)); err != nil {
		return err
	}
	if err := b.parallel(ctx, fleetSize, "nodes verified", func(i int) error {
		_, err := b.Kube.CoreV1().Nodes().Patch(ctx, fmt.Sprintf("%s%05d", nodePrefix, i), types.MergePatchType, open, metav1.PatchOptions{})
		return err
	}); err != nil {
		return err
	}
	nodes, err := b.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: created})
	if err != nil {
		return err
	}
	passed := []byte(`{"status":{"conditions":[{"type":"NodeVerified","status":"True","reason":"Verified"}]}}`)
	for _, node := range nodes.Items {
		ours := func(c corev1.NodeCondition) bool { return c.Type == "NodeVerified" }
		if slices.ContainsFunc(node.Status.Conditions, ours) {
			_, err := b.Kube.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, passed, metav1.PatchOptions{}, "status")
			if err != nil {
				return err
			}
		}
	}
	return b.removePods(ctx)
}

func (b *bench) removePods(ctx context.Context) error {
	now := int64(0)
	return b.Kube.CoreV1().Pods(harness.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now},
		metav1.ListOptions{LabelSelector: created})
}

func (b *bench) removeFleet(ctx context.Context) error {
	return errors.Join(b.removePods(ctx),
		b.Kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: created}))
}

// observation is what a program has used.
type observation struct {
	mebibytes float64       // VmHWM (proc(5))
	cpu       time.Duration // while it was observed
	requests  int           // while it was observed
}

// observe runs a program for a while. beats: kubelets send heartbeats, and the time until its caches are filled does not count for CPU
// and requests.
func (b *bench) observe(ctx context.Context, program *exec.Cmd, beats bool) (used observation, err error) {
	log, err := os.Create(filepath.Join(b.Dir, "log", "bench-"+filepath.Base(program.Path)+".log"))
	if err != nil {
		return used, err
	}
	defer func() { _ = log.Close() }()
	program.Stderr = log
	if err := program.Start(); err != nil {
		return used, err
	}
	defer func() {
		_ = program.Process.Signal(syscall.SIGTERM)
		_ = program.Wait()
	}()
	process, err := procfs.NewProc(program.Process.Pid)
	if err != nil {
		return used, err
	}
	var before procfs.ProcStat
	if beats {
		sleep(ctx, 15*time.Second) // the caches are filled; what follows is the steady state
		if before, err = process.Stat(); err != nil {
			return used, err
		}
	}
	start := time.Now()
	if beats {
		err = b.beat(ctx, observed)
	} else {
		sleep(ctx, observed)
	}
	after, statErr := process.Stat()
	status, statusErr := process.NewStatus()
	requests, auditErr := b.Audit(start, "system:admin")
	for _, request := range requests {
		if strings.HasPrefix(request.UserAgent, "kube-node-ready-controller/") && request.ObjectRef.Resource != "leases" {
			used.requests++
		}
	}
	used.mebibytes = float64(status.VmHWM) / (1 << 20)
	used.cpu = time.Duration((after.CPUTime() - before.CPUTime()) * float64(time.Second))
	return used, errors.Join(ctx.Err(), err, statErr, statusErr, auditErr)
}

// beat writes the status of nodes for a while, as kubelets do that have nothing new to say.
func (b *bench) beat(ctx context.Context, d time.Duration) error {
	ticker := time.NewTicker(time.Second / heartbeats)
	defer ticker.Stop()
	for i := range int(d.Seconds() * heartbeats) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		beat := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":%q}]}}`,
			time.Now().UTC().Format(time.RFC3339))
		_, err := b.Kube.CoreV1().Nodes().Patch(ctx, fmt.Sprintf("%s%05d", nodePrefix, i%fleetSize), types.StrategicMergePatchType, beat,
			metav1.PatchOptions{}, "status")
		if err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func controllerPath() string { return filepath.Join(binaries(), "..", "kube-node-ready-controller") }

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// controller measures the controller beside a fleet of nodes of 15 kB each: at rest (all are verified, and kubelets send heartbeats),
// and at the incident (no node is verified, no agent runs). Nothing else runs in this cluster.
func (b *bench) controller(ctx context.Context) (err error) {
	start, err := b.stopControllers(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.clear(context.WithoutCancel(ctx)), start()) }()
	template, err := b.agentTemplate(ctx)
	if err != nil {
		return err
	}
	program := func() *exec.Cmd {
		return exec.CommandContext(ctx, filepath.Join(binaries(), "..", "kube-node-ready-controller"), "--kubeconfig", b.Kubeconfig(),
			"--agent-template", template, "--not-started-after=5s", "--metrics-port=18080", "--health-port=18081")
	}
	// The real node too: while one waits, the controller decides every 10 s.
	released := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"taints":null}}`, harness.Label)
	if err := b.Patch(ctx, node, released); err != nil {
		return err
	}
	b.step("controller: %d nodes", fleetSize)
	if err := b.createFleet(ctx); err != nil {
		return err
	}
	b.step("controller: every node is verified, %d heartbeats a second", heartbeats)
	rest, err := b.observe(ctx, program())
	if err != nil {
		return err
	}
	b.step("controller: the same, a program that only watches the nodes")
	baseline, err := b.observe(ctx, exec.CommandContext(ctx, os.Args[0], "watch", b.Kubeconfig()))
	if err != nil {
		return err
	}
	b.step("controller: no node is verified")
	if err := b.parallel(ctx, fleetSize, "nodes gated", func(i int) error {
		return b.Gate(ctx, fmt.Sprintf("%s%05d", nodePrefix, i))
	}); err != nil {
		return err
	}
	incident, err := b.observe(ctx, program())
	if err != nil {
		return err
	}
	b.budget("controller, 5,000 nodes verified: peak resident memory", rest.mebibytes, restBudget, "%.0f MiB")
	b.budget("controller, 5,000 nodes verified: CPU, compared with a program that only watches the nodes",
		rest.cpu.Seconds()/baseline.cpu.Seconds(), restCPUBudget, "%.2f times")
	b.budget("controller, 5,000 nodes verified: requests a minute", float64(rest.requests), restRequestsBudget, "%.0f")
	b.budget("controller, 5,000 nodes unverified: peak resident memory", incident.mebibytes, incidentBudget, "%.0f MiB")
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

// agentTemplate writes the pod template of the chart's DaemonSet, which the controller reads.
func (b *bench) agentTemplate(ctx context.Context) (path string, err error) {
	manifest, err := b.Template(ctx, "", harness.Default(), "--show-only", "templates/daemonset.yaml")
	if err != nil {
		return "", err
	}
	var set appsv1.DaemonSet
	if err := yaml.Unmarshal([]byte(manifest), &set); err != nil {
		return "", err
	}
	text, err := yaml.Marshal(set.Spec.Template)
	path = filepath.Join(b.Dir, "bench-agent.yaml")
	return path, errors.Join(err, os.WriteFile(path, text, 0o600))
}

// createFleet creates verified nodes as large as real ones: the images make most of it.
func (b *bench) createFleet(ctx context.Context) error {
	if err := b.createNodes(ctx, fleetSize, false); err != nil {
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
	return errors.Join(err, b.parallel(ctx, fleetSize, "nodes of 15 kB", func(i int) error { return b.patchStatus(ctx, i, status) }))
}

func (b *bench) patchStatus(ctx context.Context, i int, patch []byte) error {
	_, err := b.Kube.CoreV1().Nodes().Patch(ctx, fmt.Sprintf("%s%05d", nodePrefix, i), types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	return err
}

// observation is what a program has used. CPU and requests count only while it was observed.
type observation struct {
	mebibytes float64 // VmHWM (proc(5))
	cpu       time.Duration
	requests  int
}

// observe runs a program while kubelets send heartbeats. The time until its caches are filled does not count for CPU and requests.
func (b *bench) observe(ctx context.Context, program *exec.Cmd) (used observation, err error) {
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
	sleep(ctx, 15*time.Second) // the caches are filled; what follows is the steady state
	before, err := process.Stat()
	start := time.Now()
	err = errors.Join(err, b.beat(ctx))
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
func (b *bench) beat(ctx context.Context) error {
	ticker := time.NewTicker(time.Second / heartbeats)
	defer ticker.Stop()
	for i := range int(observed.Seconds() * heartbeats) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		beat := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":%q}]}}`,
			time.Now().UTC().Format(time.RFC3339))
		if err := b.patchStatus(ctx, i%fleetSize, beat); err != nil {
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

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The benchmark runs the agent in this pod, with the agent's service account: in the pod network, with the cluster's DNS and a
// token bound to a pod on the node. The repository is mounted at its path on the host.
const (
	podName     = "bench"
	podManifest = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %[1]q, "namespace": %[2]q}, "spec": {
	"nodeName": %[3]q, "serviceAccountName": %[4]q, "automountServiceAccountToken": true,
	"terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
	"containers": [{
		"name": "bench", "image": "localhost/workload:1", "imagePullPolicy": "Never", "securityContext": {"runAsUser": 0},
		"env": [
			{"name": "CLUSTER_DIR", "value": %[6]q}, {"name": "NODE_NAME", "value": %[3]q}, {"name": "TMPDIR", "value": "/scratch"}],
		"volumeMounts": [
			{"name": "root", "mountPath": %[5]q}, {"name": "cluster", "mountPath": %[6]q}, {"name": "scratch", "mountPath": "/scratch"}]}],
	"volumes": [
		{"name": "root", "hostPath": {"path": %[5]q}}, {"name": "cluster", "hostPath": {"path": %[6]q}},
		{"name": "scratch", "emptyDir": {"medium": "Memory"}}]}}`
)

// noAgents is a chart value that selects no node for the DaemonSet.
const noAgents = "nodeSelector.bench=none"

// startPod deploys the chart with values and starts the pod. The function that it returns deletes the pod.
func (b *bench) startPod(ctx context.Context, values ...string) (end func(), err error) {
	if err := b.Deploy(ctx, values...); err != nil {
		return nil, err
	}
	kubectl := func(ctx context.Context, args ...string) error {
		_, err := b.Kubectl(ctx, "", append([]string{"-n", harness.Namespace}, args...)...)
		return err
	}
	end = func() {
		_ = kubectl(context.WithoutCancel(ctx), "delete", "pod", podName, "--ignore-not-found", "--grace-period=0", "--force")
	}
	end()
	manifest := fmt.Sprintf(podManifest, podName, harness.Namespace, node, harness.Name, b.Root, b.Dir)
	if _, err := b.Kubectl(ctx, manifest, "apply", "-f", "-"); err != nil {
		return nil, err
	}
	if err := kubectl(ctx, "wait", "pod/"+podName, "--for=condition=Ready", "--timeout=2m"); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// inside runs this program in the pod and calls each with each line of JSON that it prints.
func inside[T any](ctx context.Context, b *bench, each func(T), args ...string) error {
	args = append([]string{"exec", "-n", harness.Namespace, podName, "--", filepath.Join(binaries(), "bench"), "in-pod"}, args...)
	cmd := exec.CommandContext(ctx, b.Tool("kubectl"), args...)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+b.Kubeconfig())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var line T
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("in the pod: %q: %w", lines.Text(), err)
		}
		each(line)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("in the pod: %w: %s", err, stderr.String())
	}
	return lines.Err()
}

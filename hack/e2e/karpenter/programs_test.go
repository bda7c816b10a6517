package karpenter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// running are the processes beside the control plane, with their logs where its own are.
type running struct {
	karpenter, kwok *exec.Cmd
}

// module returns the folder of a module that hack/tools pins.
func module(ctx context.Context, cluster *harness.Cluster, tool, path string) (string, error) {
	text, err := cluster.Run(ctx, "", "go", "-C", cluster.Root+"/hack/tools/"+tool, "mod", "download", "-json", path)
	if err != nil {
		return "", err
	}
	var found struct{ Dir string }
	return found.Dir, json.Unmarshal([]byte(text), &found)
}

// installCRDs installs those of Karpenter on AWS, which are those of Karpenter itself and more, and of the kwok provider.
func installCRDs(ctx context.Context, cluster *harness.Cluster) error {
	aws, err := module(ctx, cluster, "karpenter", "github.com/aws/karpenter-provider-aws")
	if err != nil {
		return err
	}
	core, err := module(ctx, cluster, "karpenter", "sigs.k8s.io/karpenter")
	if err != nil {
		return err
	}
	// Server-side: they are too large for the annotation of the other kind.
	_, err = cluster.Kubectl(ctx, "", "apply", "--server-side", "-f", aws+"/pkg/apis/crds", "-f", core+"/kwok/apis/crds")
	if err == nil {
		_, err = cluster.Kubectl(ctx, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	}
	return err
}

func startPrograms(ctx context.Context, cluster *harness.Cluster) (*running, error) {
	types, err := instanceTypes(ctx, cluster)
	if err != nil {
		return nil, err
	}
	stages, err := kwokStages(ctx, cluster)
	if err != nil {
		return nil, err
	}
	var ports [3]string
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	var r running
	r.karpenter, err = launch(cluster, "karpenter", []string{
		"SYSTEM_NAMESPACE=kube-system", "KARPENTER_SERVICE=karpenter", "DISABLE_LEADER_ELECTION=true", "DISABLE_WEBHOOK=true",
		"METRICS_PORT=" + ports[0], "HEALTH_PROBE_PORT=" + ports[1], "BATCH_IDLE_DURATION=1s", "INSTANCE_TYPES_FILE_PATH=" + types,
	})
	if err != nil {
		return nil, err
	}
	r.kwok, err = launch(cluster, "kwok", nil, append(stages, "--kubeconfig="+cluster.Kubeconfig(), "--server-address=127.0.0.1:"+ports[2],
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=40")...)
	for _, url := range []string{ports[1] + "/readyz", ports[2] + "/healthz"} {
		if err == nil {
			err = serves(ctx, "http://127.0.0.1:"+url)
		}
	}
	if err != nil {
		r.stop()
	}
	return &r, err
}

// serves waits until a program answers that it is well.
func serves(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := harness.Until(ctx, func() (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil // not up yet
		}
		return answer.StatusCode == http.StatusOK, answer.Body.Close()
	})
	if err != nil {
		return fmt.Errorf("%s (see .cluster/log/karpenter.log and kwok.log): %w", url, err)
	}
	return nil
}

// kwokStages are the flags for kwok's own description of what a kubelet does: nodes become ready and renew their lease, pods run and end.
func kwokStages(ctx context.Context, cluster *harness.Cluster) ([]string, error) {
	kwok, err := module(ctx, cluster, "kwok", "sigs.k8s.io/kwok")
	if err != nil {
		return nil, err
	}
	var flags []string
	for _, pattern := range []string{"node/fast/node-*.yaml", "node/heartbeat-with-lease/node-*.yaml", "pod/fast/pod-*.yaml"} {
		files, err := filepath.Glob(kwok + "/kustomize/stage/" + pattern)
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("no stages %s in %s: %w", pattern, kwok, err)
		}
		for _, file := range files {
			flags = append(flags, "--config="+file)
		}
	}
	return flags, nil
}

func launch(cluster *harness.Cluster, name string, env []string, args ...string) (*exec.Cmd, error) {
	log, err := os.Create(filepath.Join(cluster.Dir, "log", name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(cluster.Tool(name), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = cluster.Dir, log, log
	cmd.Env = append(os.Environ(), append(env, "KUBECONFIG="+cluster.Kubeconfig())...)
	// A test that is killed takes them with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

func (r *running) stop() {
	for _, cmd := range []*exec.Cmd{r.karpenter, r.kwok} {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
}

func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = listener.Close() }()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return "", errors.New("no TCP address")
	}
	return strconv.Itoa(address.Port), nil
}

// instanceTypes writes the families of the example's NodePools, for Linux, as kwok's provider knows those of AWS.
func instanceTypes(ctx context.Context, cluster *harness.Cluster) (string, error) {
	core, err := module(ctx, cluster, "karpenter", "sigs.k8s.io/karpenter")
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(core + "/kwok/examples/aws_instance_types.json")
	if err != nil {
		return "", err
	}
	pools, err := os.ReadFile(cluster.Root + "/hack/examples/karpenter/nodepools.yaml")
	if err != nil {
		return "", err
	}
	var all []map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		return "", err
	}
	all = slices.DeleteFunc(all, func(kind map[string]any) bool {
		family, _, _ := strings.Cut(fmt.Sprint(kind["name"]), ".")
		if kind["architecture"] == "x86_64" {
			kind["architecture"] = "amd64" // as Kubernetes says it
		}
		return fmt.Sprint(kind["operatingSystems"]) != "[linux]" ||
			(!strings.Contains(string(pools), " "+family+",") && !strings.Contains(string(pools), "["+family+",") && !strings.Contains(string(pools), " "+family+"]"))
	})
	if text, err = json.Marshal(all); err != nil {
		return "", err
	}
	path := filepath.Join(cluster.Dir, "log", "instance-types.json")
	return path, os.WriteFile(path, text, 0o600)
}

package karpenter

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// running are the processes beside the control plane.
type running struct{ karpenter, kwok *harness.Program }

// installCRDs installs those of Karpenter on AWS, which are those of Karpenter itself and more, and of the kwok provider.
func installCRDs(ctx context.Context, cluster *harness.Cluster) error {
	aws, err := cluster.Module(ctx, "karpenter", "github.com/aws/karpenter-provider-aws")
	if err != nil {
		return err
	}
	core, err := cluster.Module(ctx, "karpenter", "sigs.k8s.io/karpenter")
	if err != nil {
		return err
	}
	// Server-side: they are too large for the annotation of the other kind.
	_, err = cluster.Kubectl(ctx, "", "apply", "--server-side", "-f", aws+"/pkg/apis/crds", "-f", core+"/kwok/apis/crds")
	if err == nil {
		_, err = cluster.Kubectl(ctx, "", "wait", "--for=condition=Established", "crd", "--all", harness.Wait)
	}
	return err
}

func startPrograms(ctx context.Context, cluster *harness.Cluster) (r running, err error) {
	types, err := instanceTypes(ctx, cluster)
	if err != nil {
		return r, err
	}
	metrics, err := harness.FreePort(ctx)
	if err != nil {
		return r, err
	}
	health, err := harness.FreePort(ctx)
	if err != nil {
		return r, err
	}
	if r.kwok, err = cluster.StartKwok(ctx); err != nil {
		return r, err
	}
	r.karpenter, err = cluster.StartProgram("karpenter", []string{
		"SYSTEM_NAMESPACE=kube-system", "KARPENTER_SERVICE=karpenter", "DISABLE_LEADER_ELECTION=true", "DISABLE_WEBHOOK=true",
		"METRICS_PORT=" + metrics, "HEALTH_PROBE_PORT=" + health, "BATCH_IDLE_DURATION=1s", "INSTANCE_TYPES_FILE_PATH=" + types,
	}, cluster.Tool("karpenter"))
	if err != nil {
		r.kwok.Stop()
		return r, err
	}
	if err := r.karpenter.AwaitOK(ctx, "http://127.0.0.1:"+health+"/readyz"); err != nil {
		r.stop()
		return r, err
	}
	return r, nil
}

func (r running) stop() {
	r.karpenter.Stop()
	r.kwok.Stop()
}

// instanceTypes writes the families of the example's NodePools, for Linux, as kwok's provider knows those of AWS.
func instanceTypes(ctx context.Context, cluster *harness.Cluster) (string, error) {
	core, err := cluster.Module(ctx, "karpenter", "sigs.k8s.io/karpenter")
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

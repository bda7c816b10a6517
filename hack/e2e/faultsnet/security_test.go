package faultsnet

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// What is in the image that the node runs: there is nothing to start but the agent.
func TestFaultNothingElseInTheImage(t *testing.T) {
	fault(t, "the image is searched for a shell or any other file", "one static binary, nothing else", func(s *suite) {
		archive := s.Script("enter", node, "ctr", "--namespace", "k8s.io", "images", "export", "-", harness.Image+":"+harness.Tag)
		files := s.untar([]byte(archive))
		var manifest []struct{ Layers []string }
		s.NoError(json.Unmarshal(files["manifest.json"], &manifest))
		s.Len(manifest, 1)
		found := make(map[string][]byte)
		for _, layer := range manifest[0].Layers {
			for name, content := range s.untar(files[layer]) {
				found[name] = content
			}
		}
		s.Contains(found, harness.Name)
		s.Len(found, 1)
		// For https:// in NETWORK_TARGETS.
		s.Greater(bytes.Count(found[harness.Name], []byte("-----BEGIN CERTIFICATE-----")), 1, "no CAs in the binary: where the image was built has none")
		binary, err := elf.NewFile(bytes.NewReader(found[harness.Name]))
		s.NoError(err)
		for _, part := range binary.Progs {
			s.NotEqual(elf.PT_INTERP, part.Type, "not static: it asks for a loader")
		}
		s.row.Round()
	})
}

// untar returns what an archive holds but directories, by name.
func (s *suite) untar(archive []byte) map[string][]byte {
	s.T.Helper()
	files := make(map[string][]byte)
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		s.NoError(err)
		s.Zero(header.Mode&0o6000, "%s is setuid or setgid", header.Name)
		if header.Typeflag == tar.TypeDir {
			continue
		}
		files[header.Name], err = io.ReadAll(reader)
		s.NoError(err)
	}
}

func TestFaultRestricted(t *testing.T) {
	users := []int{12345}
	if harness.Long() {
		users = append(users, 65534, 2_000_000_000)
	}
	for _, user := range users {
		fault(t, fmt.Sprintf("namespace that enforces restricted, user %d", user), "verified; no capability, no new privileges, seccomp, read-only root", func(s *suite) {
			s.restricted(user)
		})
	}
}

func (s *suite) restricted(user int) {
	const release = "faultsnet"
	namespace := fmt.Sprintf("faultsnet-%d", user)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted"}}}
	_, err := s.Cluster.Kube.CoreV1().Namespaces().Create(s.Ctx, space, metav1.CreateOptions{})
	s.NoError(err)
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "delete", "namespace", "--wait=false", namespace)
		return err
	})
	_, err = s.Cluster.Kube.CoreV1().Pods(namespace).Create(s.Ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "ordinary"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "one", Image: "localhost/workload:1"}}}}, metav1.CreateOptions{})
	s.ErrorContains(err, "violates PodSecurity", "the standard is not enforced")

	// Without DNS at first, so that there is time to look at the process.
	out, _ := s.directions()
	s.breakForwarded(out + "udp dport 53 drop")
	s.gate()
	manifests, err := s.Cluster.RenderAs(s.Ctx, harness.Release{Name: release, Namespace: namespace}, "config.checkTimeout=1s", "config.maxRetries=0",
		fmt.Sprintf("podSecurityContext.runAsUser=%d", user), fmt.Sprintf("podSecurityContext.runAsGroup=%d", user))
	s.NoError(err)
	s.Apply(manifests)

	s.failedRound(s.podIn(namespace), fails("dns", "timeout"))
	pod := s.podIn(namespace)
	status := s.process(pod, "status")
	for _, line := range []string{
		fmt.Sprintf("Uid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d", user), fmt.Sprintf("Gid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d", user),
		"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		s.Contains(status, line+"\n")
	}
	s.Regexp(`(?m)^\d+ \d+ \S+ \S+ / ro[, ]`, s.process(pod, "mountinfo"), "the root can be written")
	s.recovers(s.Repair)
}

// podIn waits for the one pod of a namespace.
func (s *suite) podIn(namespace string) (pod corev1.Pod) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		list, err := s.Cluster.Kube.CoreV1().Pods(namespace).List(s.Ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) == 1 {
			pod = list.Items[0]
		}
		return pod.Name != "", err
	}, "no pod in %s", namespace)
	return pod
}

// process reads a file about a pod's only container in the node's /proc.
func (s *suite) process(pod corev1.Pod, file string) string {
	s.T.Helper()
	tasks := s.Script("enter", node, "ctr", "--namespace", "k8s.io", "tasks", "list")
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	for line := range strings.Lines(tasks) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == id {
			return s.Script("enter", node, "cat", "/proc/"+fields[1]+"/"+file)
		}
	}
	s.FailNow("no process of "+pod.Name, tasks)
	return ""
}

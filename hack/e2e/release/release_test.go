package release

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	node  = harness.RealNode
	host  = "ghcr.io"
	owner = "imunhatep"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, nil)) }

// suite is a test with a registry, and a server for the files of the release.
type suite struct {
	*harness.Suite
	dir      string // hack/release.sh build DIR
	version  string
	registry *registry
	files    string // URL
	digest   string // of the agent's image; "" without a registry

	addresses []string // of a document, each followed by what stands for it here
	pulls     string   // how kubelet's Event about the agent's image begins
}

// start publishes the release on this machine. Only the addresses differ from what a new user sees.
func start(t *testing.T) *suite {
	t.Helper()
	s := &suite{Suite: harness.Start(t), dir: os.Getenv("RELEASE_DIR")}
	s.NotEmpty(s.dir, "RELEASE_DIR: run hack/e2e.sh, or name the folder of hack/release.sh build")
	clean := func(ctx context.Context) error {
		for _, image := range []string{harness.Name, harness.Controller} { // whatever was pulled before
			reference := host + "/" + owner + "/" + image + ":"
			script := "for i in $(ctr -n k8s.io images list -q | grep -F " + reference + "); do ctr -n k8s.io images rm --sync $i; done"
			if _, err := s.Cluster.Script(ctx, "enter", node, "bash", "-c", script); err != nil {
				return err
			}
		}
		// An agent carries on what the annotation of an earlier one says.
		return errors.Join(s.Cluster.Reset(ctx, node), s.Cluster.Patch(ctx, node, `{"metadata":{"annotations":{"`+harness.Annotation+`":null}}}`))
	}
	s.NoError(s.Cluster.Undeploy(s.Ctx))
	s.NoError(clean(s.Ctx))
	s.Undo(clean)
	s.version = chartField(s, filepath.Join(s.Cluster.Root, "chart"), "version")

	server := httptest.NewServer(http.FileServer(http.Dir(s.dir)))
	t.Cleanup(server.Close)
	s.files = server.URL
	if harness.Core() {
		s.withoutRegistry()
		return s
	}
	var err error
	s.registry, err = startRegistry(s.Ctx, s.Cluster, t.TempDir())
	if s.registry != nil && s.registry.Program != nil {
		s.Undo(func(context.Context) error { s.registry.Stop(); return nil })
	}
	s.NoError(err)
	for _, image := range []string{harness.Name, harness.Controller} {
		archives := make(map[string]string)
		found, err := filepath.Glob(filepath.Join(s.dir, image+"-linux-*.tar"))
		s.NoError(err)
		for _, path := range found {
			name := strings.TrimSuffix(filepath.Base(path), ".tar")
			archives[strings.TrimPrefix(name, image+"-linux-")] = path
		}
		s.Contains(archives, runtime.GOARCH)
		digest, err := s.registry.pushImage(s.Ctx, s.Cluster, owner+"/"+image, s.version, archives)
		s.NoError(err)
		if image == harness.Name {
			s.digest = digest
		}
	}
	undo, err := s.registry.mirror(s.Cluster, node, host)
	s.Undo(undo)
	s.NoError(err)
	s.pulls = "Successfully pulled image"
	s.addresses = []string{"oci://" + host + "/", "oci://" + s.registry.address + "/", "helm install ", "helm install --plain-http ",
		"helm template ", "helm template --plain-http "}
	return s
}

// withoutRegistry puts the images on the node, and lets Helm read the chart from its file.
func (s *suite) withoutRegistry() {
	s.T.Helper()
	for _, image := range []string{harness.Name, harness.Controller} {
		s.Script("load", filepath.Join(s.dir, image+"-linux-"+runtime.GOARCH+".tar"))
		s.Script("enter", node, "ctr", "-n", "k8s.io", "images", "tag", "localhost/"+image+":"+s.version, host+"/"+owner+"/"+image+":"+s.version)
	}
	s.pulls = "Container image"
	s.addresses = []string{"oci://" + host + "/" + owner + "/charts/kube-node-ready", filepath.Join(s.dir, "kube-node-ready-"+s.version+".tgz")}
}

// push publishes the chart in the registry, where there is one.
func (s *suite) push() {
	s.T.Helper()
	if s.registry == nil {
		return
	}
	printed, err := s.Cluster.Run(s.Ctx, "", "hack/release.sh", "push", s.dir, "oci://"+s.registry.address+"/"+owner+"/charts", "--plain-http")
	s.NoError(err)
	s.Regexp(`^digest=sha256:[0-9a-f]{64}\n$`, printed, "for the attestation")
}

// readme runs a block of the README, with the addresses of this machine.
func (s *suite) readme(marker string, replace ...string) string {
	s.T.Helper()
	block := s.Block("README.md", marker, "sh")
	if marker == "install-plugin" {
		s.Contains(block, s.address())
	}
	return s.block(block, replace...)
}

// block runs a block of a document, with the addresses of this machine.
func (s *suite) block(block string, replace ...string) string {
	s.T.Helper()
	replace = append(append([]string{s.address(), s.files, "sudo ", "", "/usr/local/bin", s.bin()}, s.addresses...), replace...)
	return s.Bash("cd " + s.bin() + "\nexport PATH=$PWD:$PATH\n" + strings.NewReplacer(replace...).Replace(block))
}

// address is where a user finds the files of this release.
func (s *suite) address() string {
	return "https://github.com/" + owner + "/kube-node-ready/releases/download/v" + s.version
}

// bin is a folder for the test's programs.
func (s *suite) bin() string {
	dir := filepath.Join(s.Cluster.Dir, "release-bin")
	s.NoError(os.MkdirAll(dir, 0o755))
	return dir
}

// join gates the node, and keeps it from being verified until it is seen which agent it has.
func (s *suite) join() {
	s.T.Helper()
	s.Break("meta l4proto { tcp, udp } th dport 53 drop")
	s.Gate(node)
}

// verified asserts that kubelet has pulled the agent of this release from the registry, and that it verifies the node.
func (s *suite) verified(release harness.Release, isVerified func(*corev1.Node) bool) {
	s.T.Helper()
	s.pulled(release.Namespace)
	agents := func() []corev1.Pod {
		pods, err := s.Cluster.Kube.CoreV1().Pods(release.Namespace).List(s.Ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/component=agent,app.kubernetes.io/instance=" + release.Name})
		s.NoError(err)
		return pods.Items
	}
	s.Until(func() (bool, error) {
		found := agents()
		return len(found) == 1 && found[0].Status.Phase == corev1.PodRunning, nil
	}, "no running agent")
	agent := agents()[0]
	s.Equal(host+"/"+owner+"/kube-node-ready:"+s.version, agent.Spec.Containers[0].Image)
	s.Contains(agent.Status.ContainerStatuses[0].ImageID, s.digest)
	s.Repair()
	now, _ := s.AwaitNode(node, isVerified)
	s.Contains(now.Annotations[harness.Annotation], `"version":"`+s.version+`"`)
	s.Until(func() (bool, error) { return len(agents()) == 0, nil }, "agents stay")
}

// pulled waits for kubelet's Event about an image that was not there, or without a registry that was.
func (s *suite) pulled(namespace string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		events, err := s.Cluster.Kube.CoreV1().Events(namespace).List(s.Ctx, metav1.ListOptions{FieldSelector: "reason=Pulled"})
		for _, event := range events.Items {
			if isPull := strings.HasPrefix(event.Message, s.pulls+" \""+host+"/"+owner+"/kube-node-ready:"+s.version); isPull &&
				!event.CreationTimestamp.Time.Before(s.Began.Truncate(1e9)) {
				return true, nil
			}
		}
		return false, err
	}, "kubelet has pulled nothing")
}

// The README's installation with kubectl and the files of the release, which match its checksums.
func TestInstallFromTheFiles(t *testing.T) {
	s := start(t)
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "delete", "--ignore-not-found", "-f", s.dir+"/kube-node-ready.yaml", "-f", s.dir+"/kube-node-ready-policy.yaml")
		return err
	})
	s.Contains(s.Bash("cd "+s.dir+" && sha256sum --strict --check SHA256SUMS"), "values-gke.yaml: OK", "the values of platforms are files of the release")
	s.join()
	s.readme("install-kubectl")
	s.verified(harness.Default(), harness.Verified)
	_, err := s.Cluster.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Get(s.Ctx, harness.Name, metav1.GetOptions{})
	s.NoError(err)
}

// What docs/platforms.md says first: a values file of the release.
func TestInstallWithValuesOfThePlatform(t *testing.T) {
	s := start(t)
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Run(ctx, "", s.Cluster.Tool("helm"), "uninstall", harness.Name, "--namespace", harness.Namespace, "--ignore-not-found", "--wait")
		return err
	})
	s.push()
	s.join()
	s.block(s.Block("docs/platforms.md", "install-values", "sh"))
	s.verified(harness.Default(), harness.Verified)
}

// A file that is not the release's does not pass.
func TestChecksumsFindAnotherFile(t *testing.T) {
	s := &suite{Suite: harness.Start(t), dir: os.Getenv("RELEASE_DIR")}
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(s.dir, "SHA256SUMS"))
	s.NoError(err)
	s.NoError(os.WriteFile(filepath.Join(dir, "SHA256SUMS"), sums, 0o600))
	s.NoError(os.WriteFile(filepath.Join(dir, "kube-node-ready.yaml"), []byte("kind: List\n"), 0o600))
	out, err := s.Cluster.Run(s.Ctx, "", "bash", "-c", "cd "+dir+" && sha256sum --check --ignore-missing SHA256SUMS")
	s.Error(err)
	s.Contains(out, "kube-node-ready.yaml: FAILED")
}

// Artifact Hub shows the items of CHANGELOG.md and the images of this version.
func TestAnnotationsOfTheChart(t *testing.T) {
	s := &suite{Suite: harness.Start(t), dir: os.Getenv("RELEASE_DIR")}
	s.version = chartField(s, filepath.Join(s.Cluster.Root, "chart"), "version")
	archive := filepath.Join(s.dir, "kube-node-ready-"+s.version+".tgz")
	var annotations map[string]string
	text, err := yaml.Marshal(chart(s, archive)["annotations"])
	s.NoError(err)
	s.NoError(yaml.Unmarshal(text, &annotations))

	changelog, err := os.ReadFile(filepath.Join(s.Cluster.Root, "CHANGELOG.md"))
	s.NoError(err)
	_, section, found := strings.Cut(string(changelog), "\n## ["+s.version+"]")
	s.True(found)
	section, _, _ = strings.Cut(section, "\n## [")
	var changes []struct{ Kind, Description string }
	s.NoError(yaml.Unmarshal([]byte(annotations["artifacthub.io/changes"]), &changes))
	s.Len(changes, len(regexp.MustCompile(`(?m)^- `).FindAllString(section, -1)))
	plain := strings.Join(strings.Fields(strings.ReplaceAll(section, "**", "")), " ")
	for _, change := range changes {
		s.Contains([]string{"added", "changed", "deprecated", "removed", "fixed", "security"}, change.Kind)
		s.Contains(plain, "- "+strings.Join(strings.Fields(change.Description), " "))
	}

	var images []struct{ Image string }
	s.NoError(yaml.Unmarshal([]byte(annotations["artifacthub.io/images"]), &images))
	s.Equal([]struct{ Image string }{{"ghcr.io/imunhatep/kube-node-ready:" + s.version},
		{"ghcr.io/imunhatep/kube-node-ready-controller:" + s.version}}, images)
	var links []struct{ Name, URL string }
	s.NoError(yaml.Unmarshal([]byte(annotations["artifacthub.io/links"]), &links))
	s.NotEmpty(links)
	s.Equal(strconv.FormatBool(strings.Contains(s.version, "-")), annotations["artifacthub.io/prerelease"])
}

// chart is what Helm shows of one.
func chart(s *suite, path string) (fields map[string]any) {
	s.T.Helper()
	out, err := s.Cluster.Run(s.Ctx, "", s.Cluster.Tool("helm"), "show", "chart", path)
	s.NoError(err)
	s.NoError(yaml.Unmarshal([]byte(out), &fields))
	return fields
}

func chartField(s *suite, path, field string) string {
	s.T.Helper()
	value, isText := chart(s, path)[field].(string)
	s.True(isText)
	return value
}

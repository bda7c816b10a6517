// Package release installs what hack/release.sh builds, as a new user would: from an OCI registry and from the files of a release.
// `make e2e` runs it.
package release

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const indexType = "application/vnd.docker.distribution.manifest.list.v2+json"

// registry is Debian's docker-registry, on the host's end of the link to the cluster: its nodes reach it, and nobody else does.
type registry struct {
	*harness.Program
	address string
}

func startRegistry(ctx context.Context, c *harness.Cluster, storage string) (*registry, error) {
	network, err := os.ReadFile(filepath.Join(c.Dir, "run", "net"))
	if err != nil {
		return nil, err
	}
	port, err := harness.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	r := &registry{address: strings.TrimSpace(string(network)) + ".254:" + port}
	config := filepath.Join(storage, "config.yml")
	text := fmt.Sprintf("version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s}\n", storage, r.address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	if r.Program, err = c.StartProgram("docker-registry", nil, "docker-registry", "serve", config); err != nil {
		return nil, err
	}
	return r, r.AwaitOK(ctx, "http://"+r.address+"/v2/")
}

// mirror lets a node pull the images of a host from this registry.
func (r *registry) mirror(c *harness.Cluster, node, host string) (undo func(context.Context) error, err error) {
	dir := filepath.Join(c.Dir, "nodes", node, "certs.d", host)
	undo = func(context.Context) error { return os.RemoveAll(dir) }
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return undo, err
	}
	text := fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+r.address)
	return undo, os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o600)
}

// pushImage pushes the archives of an image, one for each architecture, under one tag, and returns the digest of the index.
func (r *registry) pushImage(ctx context.Context, c *harness.Cluster, repository, tag string, archives map[string]string) (string, error) {
	type platform struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	}
	type descriptor struct {
		MediaType string   `json:"mediaType"`
		Digest    string   `json:"digest"`
		Size      int      `json:"size"`
		Platform  platform `json:"platform"`
	}
	var manifests []descriptor
	for architecture, archive := range archives {
		reference := fmt.Sprintf("docker://%s/%s:%s-%s", r.address, repository, tag, architecture)
		_, err := c.Run(ctx, "", "skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", "docker-archive:"+archive, reference)
		if err != nil {
			return "", err
		}
		text, header, err := r.manifest(ctx, http.MethodGet, repository, tag+"-"+architecture, nil)
		if err != nil {
			return "", err
		}
		manifests = append(manifests, descriptor{header.Get("Content-Type"), header.Get("Docker-Content-Digest"), len(text),
			platform{"linux", architecture}})
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": manifests})
	if err != nil {
		return "", err
	}
	_, header, err := r.manifest(ctx, http.MethodPut, repository, tag, index)
	return header.Get("Docker-Content-Digest"), err
}

// manifest reads or writes one: https://distribution.github.io/distribution/spec/api/#manifest
func (r *registry) manifest(ctx context.Context, method, repository, tag string, body []byte) ([]byte, http.Header, error) {
	url := "http://" + r.address + "/v2/" + repository + "/manifests/" + tag
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	request.Header.Set("Content-Type", indexType)
	request.Header.Set("Accept", "application/vnd.docker.distribution.manifest.v2+json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s: %s", method, url, answer.Status, text)
	}
	return text, answer.Header, err
}

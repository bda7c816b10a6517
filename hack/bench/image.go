package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
)

// writeImage writes a docker-archive of an image that contains one program, /agent.
func writeImage(path, tag string, program []byte) error {
	var layer bytes.Buffer
	if err := writeTar(&layer, file{"agent", program}); err != nil {
		return err
	}
	config := fmt.Appendf(nil, `{"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/agent"], "User": "1000:1000"},
		"rootfs": {"type": "layers", "diff_ids": ["sha256:%x"]}}`, sha256.Sum256(layer.Bytes()))
	manifest := fmt.Appendf(nil, `[{"Config": "config.json", "RepoTags": [%q], "Layers": ["layer.tar"]}]`, tag)
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	err = writeTar(out, file{"manifest.json", manifest}, file{"config.json", config}, file{"layer.tar", layer.Bytes()})
	if err != nil {
		return err
	}
	return out.Close()
}

type file struct {
	name    string
	content []byte
}

func writeTar(out io.Writer, files ...file) error {
	w := tar.NewWriter(out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.content))}); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	return w.Close()
}

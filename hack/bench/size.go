package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const mb = 1e6

// size measures the agent's binary and its image.
func (b *bench) size(context.Context) error {
	agent, err := os.Stat(agentPath())
	if err != nil {
		return err
	}
	image, err := imageSize(filepath.Join(b.Dir, "images", "kube-node-ready.tar"))
	if err != nil {
		return err
	}
	b.budget("binary, stripped", float64(agent.Size())/mb, binaryBudget, "%.2f MB")
	b.budget("image, compressed", float64(image)/mb, imageBudget, "%.2f MB")
	return nil
}

// imageSize is what a node pulls of the image in a docker-archive, in bytes: its compressed layers and its configuration.
func imageSize(path string) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	var total int64
	for archive := tar.NewReader(file); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return 0, err
		}
		name := header.Name
		if header.Typeflag != tar.TypeReg || name == "manifest.json" || name == "repositories" || strings.HasSuffix(name, "VERSION") {
			continue // it belongs to the archive, not to the image
		}
		n, err := gzipSize(archive)
		if err != nil {
			return 0, err
		}
		total += n
	}
}

// gzipSize is the size of a stream in bytes after gzip at the level that image builders use.
func gzipSize(in io.Reader) (int64, error) {
	var n counter
	out := gzip.NewWriter(&n)
	if _, err := io.Copy(out, in); err != nil {
		return 0, err
	}
	err := out.Close()
	return int64(n), err
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

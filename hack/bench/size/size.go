// Package size weighs the agent and its image.
package size

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
)

// Compressed is what a node pulls of the image in a docker-archive: its layers through gzip, and its
// configuration. In bytes.
func Compressed(path string) (int64, error) {
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
		// What is about the archive, not of the image.
		if header.Typeflag != tar.TypeReg || header.Name == "manifest.json" || header.Name == "repositories" || strings.HasSuffix(header.Name, "VERSION") {
			continue
		}
		n, err := Gzipped(archive)
		if err != nil {
			return 0, err
		}
		total += n
	}
}

// Gzipped is how many bytes a stream has after compression at the level that image builders use.
func Gzipped(in io.Reader) (int64, error) {
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

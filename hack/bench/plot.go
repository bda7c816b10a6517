package main

import (
	"encoding/json"
	"errors"
	"image/color"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// point is the time that a number of nodes took.
type point struct {
	Nodes   int     `json:"nodes"`
	Seconds float64 `json:"seconds"`
}

// draw keeps the points in scale.json, with those of earlier runs for other numbers of nodes, and
// draws scale.svg of them.
func (b *bench) draw(points []point) error {
	path := func(name string) string { return filepath.Join(b.Root, "hack", "bench", name) }
	all, err := readPoints(path("scale.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, p := range points {
		all = slices.DeleteFunc(all, func(old point) bool { return old.Nodes == p.Nodes })
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b point) int { return a.Nodes - b.Nodes })
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path("scale.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return plotTo(path("scale.svg"), all)
}

func readPoints(path string) (points []point, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return points, json.Unmarshal(text, &points)
}

func plotTo(path string, points []point) error {
	figure := plot.New()
	figure.Title.Text = "From the first node created to the last one open"
	figure.X.Label.Text, figure.Y.Label.Text = "nodes, all at once", "seconds"
	figure.X.Scale, figure.Y.Scale = plot.LogScale{}, plot.LogScale{}
	figure.X.Tick.Marker, figure.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	figure.BackgroundColor = color.White
	xys := make(plotter.XYs, len(points))
	for i, p := range points {
		xys[i] = plotter.XY{X: float64(p.Nodes), Y: p.Seconds}
	}
	line, dots, err := plotter.NewLinePoints(xys)
	if err != nil {
		return err
	}
	figure.Add(plotter.NewGrid(), line, dots)
	return figure.Save(16*vg.Centimeter, 10*vg.Centimeter, path)
}

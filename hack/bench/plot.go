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
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// point is the result of one series for one number of nodes.
type point struct {
	Nodes        int     `json:"nodes"`
	Seconds      float64 `json:"seconds"`             // from the first node created to the last node done
	APIServerCPU float64 `json:"apiServerCPUSeconds"` // in a window of the same length in each series
	Requests     int     `json:"requests"`            // of the agents
}

// draw adds a point of each series to scale.json, in the place of those for the same number of nodes, and draws scale.svg.
func (b *bench) draw(measured map[string]point) error {
	path := func(name string) string { return filepath.Join(b.Root, "hack", "bench", name) }
	all, err := readPoints(path("scale.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for series, added := range measured {
		points := append(slices.DeleteFunc(all[series], func(p point) bool { return p.Nodes == added.Nodes }), added)
		slices.SortFunc(points, func(a, b point) int { return a.Nodes - b.Nodes })
		all[series] = points
	}
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path("scale.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return plotTo(path("scale.svg"), all)
}

// readPoints returns the points by series.
func readPoints(path string) (map[string][]point, error) {
	all := map[string][]point{}
	text, err := os.ReadFile(path)
	if err != nil {
		return all, err
	}
	return all, json.Unmarshal(text, &all)
}

func plotTo(path string, all map[string][]point) error {
	figure := plot.New()
	figure.Title.Text = "First node created to last node done"
	figure.X.Label.Text, figure.Y.Label.Text = "nodes, all created at once", "seconds"
	figure.X.Scale, figure.Y.Scale = plot.LogScale{}, plot.LogScale{}
	figure.X.Tick.Marker, figure.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	figure.BackgroundColor = color.White
	figure.Legend.Top, figure.Legend.Left, figure.Legend.XOffs = true, true, vg.Centimeter/2
	figure.Add(plotter.NewGrid())
	var lines []any
	for _, series := range []string{withAgent, idleDaemonSet, controllerMode, noDaemonSet} {
		if len(all[series]) == 0 { // not measured yet
			continue
		}
		points := make(plotter.XYs, len(all[series]))
		for i, p := range all[series] {
			points[i] = plotter.XY{X: float64(p.Nodes), Y: p.Seconds}
		}
		lines = append(lines, series, points)
	}
	if err := plotutil.AddLinePoints(figure, lines...); err != nil {
		return err
	}
	figure.X.Max = max(figure.X.Max, 2*figure.X.Min) // a logarithmic axis needs a range
	return figure.Save(16*vg.Centimeter, 10*vg.Centimeter, path)
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	svg "github.com/ajstarks/svgo/float"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// bars is a picture with a group of bars for each name.
type bars struct {
	title, subtitle string
	groups          []string
	series          []series
}

// series has a bar in each group, and what is written beside it.
type series struct {
	name   string
	class  string // of harness.PictureStyle
	values []float64
	labels []string
}

// Layout, in pixels.
const (
	width     = 800.0
	margin    = 24.0
	barsFrom  = 190.0
	barsTo    = 610.0 // of the longest bar; its text is behind it
	barHeight = 15.0
	rowHeight = 19.0
	groupGap  = 12.0
	textDrop  = 4.5 // from the middle of a row to the foot of its text
)

// draw returns the picture. The same figures give the same bytes.
func (b bars) draw() []byte {
	groupHeight := rowHeight*float64(len(b.series)) + groupGap
	height := 112 + groupHeight*float64(len(b.groups))
	longest := 0.0
	for _, s := range b.series {
		longest = max(longest, slices.Max(s.values))
	}
	var out bytes.Buffer
	canvas := svg.New(&out)
	canvas.Decimals = 1
	canvas.Start(width, height, fmt.Sprintf(`viewBox="0 0 %.0f %.0f"`, width, height), `role="img"`)
	canvas.Title(b.title)
	canvas.Style("text/css", harness.PictureStyle)
	canvas.Roundrect(0.5, 0.5, width-1, height-1, 6, 6, `class="card"`)
	canvas.Text(margin, 36, b.title, `class="title"`)
	canvas.Text(margin, 58, b.subtitle, `class="quiet"`)
	for i, s := range b.series {
		class, left := fmt.Sprintf("class=%q", s.class), barsFrom+200*float64(i)
		canvas.Roundrect(left, 73, barHeight, barHeight, 1.5, 1.5, class)
		canvas.Text(left+barHeight+8, 73+barHeight/2+textDrop, s.name)
		for j, value := range s.values {
			middle := 100 + groupHeight*float64(j) + rowHeight*(float64(i)+0.5)
			length := max((barsTo-barsFrom)*value/longest, 2)
			canvas.Roundrect(barsFrom, middle-barHeight/2, length, barHeight, 1.5, 1.5, class)
			canvas.Text(barsFrom+length+8, middle+textDrop, s.labels[j])
		}
	}
	for j, name := range b.groups {
		canvas.Text(margin, 100+groupHeight*float64(j)+(groupHeight-groupGap)/2+textDrop, name)
	}
	canvas.End()
	return out.Bytes()
}

func benefitPicture(all []benefit) bars {
	without, with := series{name: "without the gate", class: "bad"}, series{name: "with the gate", class: "agent"}
	picture := bars{title: "A new node gets ten pods that need DNS when they start", subtitle: "Seconds from the working network until all are ready, and how often kubelet " +
		"restarted them. Medians of make bench."}
	for _, m := range all {
		picture.groups = append(picture.groups, m.String())
		without.add(median(m.Without.Ready), fmt.Sprintf("%.1f s, %.0f restarts", median(m.Without.Ready), m.Without.restarts()))
		with.add(median(m.With.Ready), fmt.Sprintf("%.1f s, %.0f restarts", median(m.With.Ready), m.With.restarts()))
	}
	picture.series = []series{without, with}
	return picture
}

// point is the result of one series for one number of nodes.
type point struct {
	Nodes        int     `json:"nodes"`
	Seconds      float64 `json:"seconds"`             // from the first node created to the last node done
	APIServerCPU float64 `json:"apiServerCPUSeconds"` // in a window of the same length for agent and idle DaemonSet
	Requests     float64 `json:"requestsPerNode"`
}

func scalePicture(all map[string][]point) bars {
	picture := bars{title: "Many new nodes, all created at once", subtitle: "Seconds from the first node created to the last one released. " +
		"The idle DaemonSet only starts its pods."}
	for name, class := range map[string]string{withAgent: "agent", controllerMode: "cluster", idleDaemonSet: "workload"} {
		s := series{name: name, class: class}
		picture.groups = nil
		for _, p := range all[name] {
			picture.groups = append(picture.groups, fmt.Sprintf("%d nodes", p.Nodes))
			s.add(p.Seconds, fmt.Sprintf("%.1f s", p.Seconds))
		}
		picture.series = append(picture.series, s)
	}
	slices.SortFunc(picture.series, func(a, b series) int { return strings.Compare(a.name, b.name) })
	return picture
}

func (s *series) add(value float64, label string) {
	s.values, s.labels = append(s.values, value), append(s.labels, label)
}

func (b *bench) drawBenefit(all []benefit) error { return b.draw("benefit", all, benefitPicture(all)) }

func (b *bench) drawScale(waves map[string]map[int]wave) error {
	all := make(map[string][]point)
	for name, bySize := range waves {
		for _, n := range b.sizes {
			w := bySize[n]
			all[name] = append(all[name], point{n, w.took.Seconds(), w.cpu, w.requests})
		}
	}
	return b.draw("scale", all, scalePicture(all))
}

// draw writes figures and their picture into the folder of the benchmark.
func (b *bench) draw(name string, figures any, picture bars) error {
	path := filepath.Join(b.Root, "hack", "bench", name)
	text, err := json.MarshalIndent(figures, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path+".json", append(text, '\n'), 0o644), os.WriteFile(path+".svg", picture.draw(), 0o644))
}

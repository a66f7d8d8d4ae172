//! Tensors by module path.

use wcodec::TensorInfo;
use wcodec::text::safe;

use super::totals::Totals;
use crate::draw::text::width;

/// Levels of modules at most; what is deeper is one label. A file may have names of thousands of parts.
const DEEPEST: usize = 64;

/// A module, or a tensor in one.
#[derive(Clone, Debug)]
pub struct Node {
    /// The path without the last part, from the root: where in a tensor's name the label begins.
    pub path: String,
    /// Its part of the path; several parts where a module has only one child.
    pub label: String,
    /// 0 at the root's children.
    pub depth: usize,
    /// The node that it is in.
    pub parent: Option<usize>,
    /// For a tensor, its place in the file.
    pub tensor: Option<usize>,
    /// Sums over all tensors below.
    pub totals: Totals,
    /// One behind its last descendant: those of node `i` are `i + 1..end`.
    pub end: usize,
}

/// Modules and tensors in natural order, parents before their children.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// In the order in which they are shown when all are unfolded.
    pub nodes: Vec<Node>,
    /// The node of each tensor.
    pub node_of: Vec<usize>,
    /// Columns of the terminal that the widest label takes, with two for each level before it and two for the sign.
    pub widest: usize,
}

impl Tree {
    /// The tree of tensors in natural order, whose names are paths with dots. A module with a single child is one with it.
    pub fn new(tensors: &[TensorInfo], natural: &[usize]) -> Self {
        let paths: Vec<Vec<&str>> = natural.iter().map(|&i| tensors[i].name.splitn(DEEPEST, '.').collect()).collect();
        let mut tree = Self { nodes: Vec::new(), node_of: vec![0; tensors.len()], widest: 0 };
        tree.fill(tensors, natural, &paths, 0, None);
        tree.widest = tree.nodes.iter().map(|n| 2 * n.depth + 2 + width(&safe(&n.label))).max().unwrap_or(0);
        tree
    }

    /// The innermost module that holds two tensors.
    pub fn module_of(&self, first: usize, last: usize) -> Option<usize> {
        self.upwards(self.parent_of(first)).find(|&at| (at..self.nodes[at].end).contains(&self.node_of[last]))
    }

    /// The module that a tensor is in.
    pub fn parent_of(&self, tensor: usize) -> Option<usize> {
        self.nodes.get(*self.node_of.get(tensor)?)?.parent
    }

    /// A node and the modules that it is in, from the inside out.
    pub fn upwards(&self, node: Option<usize>) -> impl Iterator<Item = usize> {
        std::iter::successors(node, |&at| self.nodes.get(at)?.parent)
    }

    /// Adds the nodes of tensors that share the first `at` parts of their paths.
    fn fill(&mut self, tensors: &[TensorInfo], order: &[usize], paths: &[Vec<&str>], at: usize, parent: Option<usize>) {
        let depth = parent.map_or(0, |p| self.nodes[p].depth + 1);
        let mut begin = 0;
        while begin < order.len() {
            let part = paths[begin].get(at);
            let same = |p: &Vec<&str>| p.get(at) == part;
            let end = begin + paths[begin..].iter().take_while(|p| same(p)).count();
            let group = &paths[begin..end];
            let node = self.nodes.len();
            let path = group[0][..at].join(".");
            if end - begin == 1 || part.is_none() {
                for (i, path_of) in (begin..end).zip(group) {
                    self.node_of[order[i]] = self.nodes.len();
                    self.nodes.push(Node {
                        path: path.clone(),
                        label: path_of[at.min(path_of.len() - 1)..].join("."),
                        depth,
                        parent,
                        tensor: Some(order[i]),
                        totals: Totals::of([&tensors[order[i]]]),
                        end: self.nodes.len() + 1,
                    });
                }
            } else {
                // Parts that all of them share are one level.
                let shared = (at + 1..).take_while(|&k| {
                    group[0].len() > k + 1 && group.iter().all(|p| p.len() > k + 1 && p[k] == group[0][k])
                });
                let next = at + 1 + shared.count();
                self.nodes.push(Node {
                    path,
                    label: group[0][at..next].join("."),
                    depth,
                    parent,
                    tensor: None,
                    totals: Totals::of(order[begin..end].iter().map(|&i| &tensors[i])),
                    end: 0,
                });
                self.fill(tensors, &order[begin..end], group, next, Some(node));
                self.nodes[node].end = self.nodes.len();
            }
            begin = end;
        }
    }
}

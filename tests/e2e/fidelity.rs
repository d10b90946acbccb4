//! Promise 3 and its neighbours: every row arrives once, byte for byte, with its id, in the order of its key.

mod bulk;
mod languages;
mod values;

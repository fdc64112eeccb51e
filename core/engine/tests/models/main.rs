//! Parts of the engine under a model checker, with their own code: every interleaving of a few steps.

mod handover;
mod listing;
mod loan;
mod token;

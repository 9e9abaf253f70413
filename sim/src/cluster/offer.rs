//! The handover's types, with what a source offers here: a word that nobody reads.

pub type Offer = String;
pub type Manager = skein_handover::Manager<Offer>;
pub type Input = skein_handover::Input<Offer>;
pub type Action = skein_handover::Action<Offer>;
pub type Message = skein_handover::Message<Offer>;
